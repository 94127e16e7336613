// Package rdmatest is for tests of programs that use RDMA, and of providers.
//
// # A network in memory
//
// A Fabric joins hosts that each have an embedded device. It needs no privilege, no
// hardware and no descriptor, and it uses no real time: a test that runs in a
// testing/synctest bubble sees minutes of retries pass in microseconds.
//
//	synctest.Test(t, func(t *testing.T) {
//		f := rdmatest.NewFabric(t, 0)
//		server := f.Host(netip.MustParseAddr("10.0.0.1"))
//		client := f.Host(netip.MustParseAddr("10.0.0.2"))
//		f.Loss(netip.Addr{}, netip.Addr{}, 0.01)
//		...
//	})
//
// A Rule does one thing to chosen datagrams: lose the third acknowledgement, hold
// back a reply until the test lets it go, turn a bit over. Forge sends what no
// honest host would send.
//
// With VERBENA_PCAP_DIR set, every fabric writes what the devices sent to each other
// as a pcap file of that directory, named after the test.
//
// # Pairs and leaks
//
// QPPair and JoinedPair give two connected queue pairs in one line, ConnPair two ends of a
// stream (package rdma). CheckLeaks fails a test that leaves objects, goroutines or
// descriptors behind.
//
// # The conformance suite
//
// Conformance runs what every provider must do. The names of its tests begin with
// the number of the behaviour, such as C-091_SendRecv; docs/conformance.md lists
// them.
package rdmatest
