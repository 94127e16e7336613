package driver

// SharedOpener is an optional ability of a Provider whose connection manager has devices
// open itself: to give those, so that a process has each open once, and one reader of its
// asynchronous events.
type SharedOpener interface {
	// OpenShared gives the opening of a device that the process shares with the
	// connection manager, a new one only if that which was given before is gone. Its
	// Close leaves it open.
	OpenShared(name string) (Context, error)
}
