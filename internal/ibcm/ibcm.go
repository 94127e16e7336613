// Package ibcm is the InfiniBand communication manager (IBTA Vol 1 ch. 12): its
// messages (message.go and what follows it), and the machine that makes, accepts and
// ends connections (agent.go). It has no socket, clock, timer, goroutine or lock.
package ibcm
