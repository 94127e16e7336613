package rdma

import (
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/verbs"
)

// Config says how connections are made. A nil *Config, and every zero field, means the
// default. It is copied when it is used.
type Config struct {
	// Provider is the source of devices. Nil: as Provider(Auto) says.
	Provider verbs.Provider

	// SendBuf and RecvBuf bound the bytes that a connection holds in each direction: what
	// was written and not taken by the peer's memory, and what came and was not read. An
	// idle connection holds a few KiB; the rest is taken when it is needed and given back.
	// Zero: 512 KiB and 1 MiB; 256 KiB to receive from C programs. At most 64 MiB;
	// below 4 KiB they are 4 KiB, and they are rounded up to pages. As the peer's RecvBuf
	// bounds what is on its way, raise both for long fast paths. Between two Verbenas what is
	// held to be read is in messages of up to 64 KiB, so RecvQueue bounds it as well: to
	// RecvQueue − 12 of them, and to 499.
	// Over TCP SendBuf and RecvBuf are the buffers of the socket, as far as the system allows,
	// and zero leaves them to the system.
	SendBuf, RecvBuf int

	// SendQueue and RecvQueue are the messages that may be outstanding. Zero: 16 and 32
	// between two Verbenas, where a message may be long, and towards C programs that are
	// dialled; 64 and 128 towards C programs that dial. At most 32768, and what the device
	// can do; below 16 and 32 they are 16 and 32.
	SendQueue, RecvQueue int

	// Inline is the largest write that is copied into the request itself, in bytes, at most
	// 4096. Not all devices have it, or so much: then it is as if less had been asked for.
	// Zero: 64; negative: none.
	Inline int

	// Maps is how many pieces of memory the peer may offer at a time (Map), at most 128;
	// zero: none. C programs call it RDMA_IOMAPSIZE.
	Maps int

	// TOS is the type of service or traffic class of the packets (SetTOS says more), over TCP
	// as well, where the system has that (not Windows).
	TOS uint8

	// KeepAlive is the time without a sign of life after which the peer is asked for one.
	// A peer that then does not answer for as long, and for 100 ms at least, ends the
	// connection with ETIMEDOUT. Zero: 15 s; negative: off. See SetKeepAliveConfig.
	KeepAlive time.Duration

	// Linger is how long Close waits for the peer's memory to take what was written. Zero:
	// 5 s; negative: not at all, what was not taken is lost and the peer sees a reset. See
	// SetLinger. Over TCP a negative one does the same, and otherwise Close does not wait: the
	// system goes on delivering.
	Linger time.Duration

	// HandshakeTimeout bounds the making of a connection on the side of the listener. Zero:
	// 10 s; it must not be negative. The dialer's side is bounded by its context and
	// Dialer.Timeout.
	HandshakeTimeout time.Duration

	// Spin says how a blocked call waits: asleep (the zero value), or looking for a while
	// first. The connections of a device share what Adaptive learns, and it begins anew when
	// one of another policy waits.
	Spin verbs.Spin

	// Compatible leaves the Verbena extension out of the handshake: both sides then speak
	// rsockets, version 1, as with a C program. It is for tests and comparisons.
	Compatible bool

	// Fallback says whether TCP may take the place of RDMA.
	Fallback Fallback

	// Trace has functions that are called when something happens. Nil: none.
	Trace *Trace
}

// Fallback to TCP on the same address and port.
type Fallback uint8

const (
	// NoFallback is RDMA or an error.
	NoFallback Fallback = iota
	// TCPFallback: Dial takes TCP if RDMA cannot be had at any address of its target; Listen
	// serves both on one port number, and goes on with TCP alone if this host has no RDMA.
	// Conn.Transport says which it is and why.
	TCPFallback
)

// Limits and defaults of Config.
const (
	defaultSendBuf   = 512 << 10
	defaultRecvBuf   = 1 << 20
	minBuf           = 4 << 10
	maxBuf           = 64 << 20
	defaultKeepAlive = 15 * time.Second
	defaultLinger    = 5 * time.Second
	defaultHandshake = 10 * time.Second
	defaultInline    = 64
	maxInline        = 4 << 10
	maxQueue         = 32 << 10
	maxMaps          = 128
)

// ConfigError says which field of a Config, or of a ListenConfig, has a value that cannot
// be. Dial and Listen give it, in a *net.OpError, before they do anything. It is
// syscall.EINVAL for errors.Is.
type ConfigError struct {
	Field string // "Config.SendQueue"
	Value int64
	Want  string // what is possible: "at most 32768, and zero for the default"
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("rdma: %s is %d: it must be %s", e.Field, e.Value, e.Want)
}

// Is reports whether target is syscall.EINVAL.
func (e *ConfigError) Is(target error) bool { return target == syscall.EINVAL }

// settle gives a Config without nil and with the defaults, or says what is wrong with it. The
// defaults of SendBuf and RecvBuf stay zero: that of RecvBuf is not the same for all peers
// (connOptions.recvLimit), and those of TCP are the system's.
func (c *Config) settle() (Config, error) {
	var cfg Config
	if c != nil {
		cfg = *c
	}
	for _, f := range []struct {
		name     string
		v        *int
		def      int
		min, max int
	}{
		{"SendBuf", &cfg.SendBuf, 0, minBuf, maxBuf},
		{"RecvBuf", &cfg.RecvBuf, 0, minBuf, maxBuf},
		{"SendQueue", &cfg.SendQueue, 0, 16, maxQueue},
		{"RecvQueue", &cfg.RecvQueue, 0, 32, maxQueue},
		{"Maps", &cfg.Maps, 0, 0, maxMaps},
	} {
		switch {
		case *f.v == 0:
			*f.v = f.def
		case *f.v < 0 || *f.v > f.max:
			return cfg, &ConfigError{"Config." + f.name, int64(*f.v), fmt.Sprintf("at most %d, and zero for the default", f.max)}
		default:
			*f.v = max(*f.v, f.min)
		}
	}
	for _, n := range []*int{&cfg.SendBuf, &cfg.RecvBuf} {
		if *n > 0 {
			*n = bufSize(*n)
		}
	}
	switch {
	case cfg.Inline == 0:
		cfg.Inline = defaultInline
	case cfg.Inline < 0:
		cfg.Inline = 0
	case cfg.Inline > maxInline:
		return cfg, &ConfigError{"Config.Inline", int64(cfg.Inline), fmt.Sprintf("at most %d, zero for the default, and negative for none", maxInline)}
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = defaultKeepAlive
	}
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	switch {
	case cfg.HandshakeTimeout == 0:
		cfg.HandshakeTimeout = defaultHandshake
	case cfg.HandshakeTimeout < 0:
		return cfg, &ConfigError{"Config.HandshakeTimeout", int64(cfg.HandshakeTimeout), "positive, and zero for the default"}
	}
	if cfg.Fallback > TCPFallback {
		return cfg, &ConfigError{"Config.Fallback", int64(cfg.Fallback), "NoFallback (0) or TCPFallback (1)"}
	}
	return cfg, nil
}

// bufSize gives what a SendBuf or RecvBuf of n bytes means: whole pages, and minBuf at least.
func bufSize(n int) int {
	const page = 4 << 10
	return (max(n, minBuf) + page - 1) &^ (page - 1)
}

// provider gives the provider of a Config without nil.
func (c *Config) provider() (verbs.Provider, error) {
	if c.Provider != nil {
		return c.Provider, nil
	}
	p, _, err := Provider(Auto)
	return p, err
}
