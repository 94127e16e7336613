package lab_test

// differs is where kernel Soft-RoCE does not behave as the standard says, and the embedded
// device does.
var differs = map[string]string{}
