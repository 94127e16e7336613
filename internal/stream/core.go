package stream

type outgoing struct{}
type incoming struct{}
type ending struct{}
type timers struct{}
type maps struct{}
type compat struct{}
type verbena struct{}
