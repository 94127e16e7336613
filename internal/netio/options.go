package netio

import "os"

// options of a socket.
type options struct {
	gso, gro, ecn bool
}

func optionsFromEnv() options {
	return options{
		gso: !disabled("VERBENA_DISABLE_GSO"),
		gro: !disabled("VERBENA_DISABLE_GRO"),
		ecn: !disabled("VERBENA_DISABLE_ECN"),
	}
}

func disabled(name string) bool {
	v := os.Getenv(name)
	return v != "" && v != "0"
}

const (
	// ipv4Payload is the most that an IPv4 datagram carries behind IP and UDP header.
	// IPv6 would carry 20 bytes more; one number for both is simpler.
	ipv4Payload = 65535 - 20 - 8

	// singleSize is the room for a datagram where there are no trains: the largest
	// RoCEv2 packet has 4096 bytes of payload and at most 68 bytes of headers, ICRC
	// included. A page on top leaves it no way to be cut by chance.
	singleSize = 8192
)
