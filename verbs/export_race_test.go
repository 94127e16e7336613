package verbs

// RaceEnabled says whether the race detector is on.
const RaceEnabled = raceEnabled
