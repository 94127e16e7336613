// Package ibverbs is the provider of kernel devices: libibverbs and librdmacm behind the
// contract of package driver. It is the only package that uses cgo.
//
// docs/kernel-devices.md has the binary interface, the traps and the tests that hold them
// shut, and what is not supported.
//
// Both libraries are loaded when the first Provider is made, so a program neither needs
// their -dev packages to be built nor the libraries to start. abi_verbs.h and abi_cm.h
// declare what crosses their binary interface; TestABI holds those against the real
// headers where these are installed. Built without cgo, or for another system than Linux,
// the package has a Provider that cannot be made.
//
// Rules of the C side (shim_*.c):
//
//   - It translates, and nothing more: what an object is and who may call it when is
//     decided in Go. All knowledge of layouts is in C.
//   - It calls no Go code and keeps no Go pointer. What the device reads lies in memory of
//     C, or is registered.
//   - Posting and polling take up to 64 requests or completions in one call, and do not
//     allocate, not even when they fail. Places of requests lie in memory of C.
//   - Events are copied and acknowledged by the call that takes them (completion events in
//     batches, the rest when the queue is destroyed), so nothing waits for a reader.
//   - What the libraries give back with an event is a key, which is looked up. What it finds
//     holds the handle that package verbs or cm chose, never a Go pointer.
//   - A function or an operation that a library may lack is tested before it is called; the
//     error names it.
package ibverbs
