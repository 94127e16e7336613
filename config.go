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
	// (Towards C programs RecvBuf is there as long as the connection.) Zero: 256 KiB and 1
	// MiB, and 256 KiB for both towards C programs. They are rounded up to pages, and at
	// most 64 MiB. As the peer's RecvBuf bounds what is on its way, raise both for long fast
	// paths.
	SendBuf, RecvBuf int

	// SendQueue and RecvQueue are the messages that may be outstanding, at least 16 and 32.
	// Zero: few between two Verbenas, where a message may be long; to C programs that
	// dial 384, as rsockets has it, and to those that are dialled 16 and 64.
	SendQueue, RecvQueue int

	// Inline is the largest write that is copied into the request itself, in bytes; not all
	// devices have it. Zero: 64; negative: none.
	Inline int

	// Maps is how many pieces of memory the peer may offer at a time (Map); zero: none,
	// and at most 128. C programs call it RDMA_IOMAPSIZE.
	Maps int

	// TOS is the type of service or traffic class of the packets (SetTOS says more).
	TOS uint8

	// KeepAlive is the time without a sign of life after which the peer is asked for one.
	// A peer that then does not answer ends the connection with ETIMEDOUT. Zero: 15 s;
	// negative: off. See SetKeepAliveConfig.
	KeepAlive time.Duration

	// Linger is how long Close waits for the peer's memory to take what was written. Zero:
	// 5 s; negative: not at all, what was not taken is lost and the peer sees a reset. See
	// SetLinger.
	Linger time.Duration

	// HandshakeTimeout bounds the making of a connection on the side of the listener. Zero:
	// 10 s. The dialer's side is bounded by its context and Dialer.Timeout.
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
	// TCPFallback: Dial takes TCP if RDMA cannot be had there; Listen serves both on one
	// port number, and goes on with TCP alone if this host has no RDMA. Conn.Transport says
	// which it is and why.
	TCPFallback
)

// Limits and defaults of Config.
const (
	defaultSendBuf   = 256 << 10
	defaultRecvBuf   = 1 << 20
	minBuf           = 4 << 10
	maxBuf           = 64 << 20
	defaultKeepAlive = 15 * time.Second
	defaultLinger    = 5 * time.Second
	defaultHandshake = 10 * time.Second
	defaultInline    = 64
	maxQueue         = 65534
)

// settle gives a Config without nil and with the defaults, or says what is wrong with it.
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
		{"SendBuf", &cfg.SendBuf, defaultSendBuf, minBuf, maxBuf},
		{"RecvBuf", &cfg.RecvBuf, defaultRecvBuf, minBuf, maxBuf},
		{"SendQueue", &cfg.SendQueue, 0, 16, maxQueue},
		{"RecvQueue", &cfg.RecvQueue, 0, 32, maxQueue},
		{"Maps", &cfg.Maps, 0, 0, 128},
	} {
		switch {
		case *f.v == 0:
			*f.v = f.def
		case *f.v < 0 || *f.v > f.max:
			return cfg, fmt.Errorf("rdma: Config.%s is %d: it must be at most %d, and zero for the default: %w", f.name, *f.v, f.max, syscall.EINVAL)
		default:
			*f.v = max(*f.v, f.min)
		}
	}
	const page = 4 << 10
	cfg.SendBuf = (cfg.SendBuf + page - 1) &^ (page - 1)
	cfg.RecvBuf = (cfg.RecvBuf + page - 1) &^ (page - 1)
	switch {
	case cfg.Inline == 0:
		cfg.Inline = defaultInline
	case cfg.Inline < 0:
		cfg.Inline = 0
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
		return cfg, fmt.Errorf("rdma: Config.HandshakeTimeout is negative: %w", syscall.EINVAL)
	}
	if cfg.Fallback > TCPFallback {
		return cfg, fmt.Errorf("rdma: Config.Fallback is %d: use NoFallback or TCPFallback: %w", cfg.Fallback, syscall.EINVAL)
	}
	return cfg, nil
}

// provider gives the provider of a Config without nil.
func (c *Config) provider() (verbs.Provider, error) {
	if c.Provider != nil {
		return c.Provider, nil
	}
	p, _, err := Provider(Auto)
	return p, err
}
