package event

// serveEvents is the serve of a source of events: each is fetched just before its call, at
// most as many as the source may have in a turn.
func serveEvents[E any](w *Watch, most int, try func() (E, bool, error), f func(E)) (more bool, err error) {
	for i := range most {
		ev, ok, err := try()
		if err != nil {
			return false, err
		}
		if !ok {
			return false, w.nothing(i)
		}
		w.l.n++
		f(ev)
		if w.closed.Load() {
			return false, nil
		}
	}
	return true, nil
}
