//go:build !race

package unix

func raceRelease() {}
func raceAcquire() {}
