package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire"
)

// TestRpingCaptures follows rdma-core's rping on the wire: both machines must do what
// its client and its server did, with the same bytes.
func TestRpingCaptures(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"example-rping.pcap", "example-rping-ipv6.pcap"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := os.Open("../../testdata/captures/rsockets/" + name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			r, err := wire.NewPcapReader(bufio.NewReader(f))
			if err != nil {
				t.Fatal(err)
			}
			server := serverState{limit: rpingMax}
			var client clientState
			var clientAddr netip.Addr // who sends first
			var data []byte
			var due action // of the server
			seq := 0
			for {
				_, frame, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				d, ok := wire.ParseFrame(frame)
				if !ok {
					continue
				}
				var p wire.Packet
				if err := p.Decode(d.Payload[:len(d.Payload)-4]); err != nil || p.DestQP == ib.QPNGSI {
					continue
				}
				fromClient := d.Src.Addr() == clientAddr || !clientAddr.IsValid()
				reth := ib.Remote{Addr: p.RETH.Addr, RKey: p.RETH.RKey, Len: p.RETH.Len}
				switch op := byte(p.Opcode); {
				case op == 0x04 && fromClient: // SEND
					clientAddr = d.Src.Addr()
					if server.phase == serverIdle {
						client.begin()
					}
					if due, err = server.received(p.Payload); err != nil {
						t.Fatal(err)
					}
				case op == 0x0c && !fromClient: // READ request
					if due != actRead || reth != server.at {
						t.Fatalf("rping reads %v, the machine wants %d of %v", reth, due, server.at)
					}
				case op == 0x10 && fromClient: // READ response
					data = bytes.Clone(p.Payload)
					want := make([]byte, len(data))
					if fillPing(want, seq); !bytes.Equal(data, want) {
						t.Fatalf("exchange %d: rping's data is\n%q, ours\n%q", seq, data, want)
					}
					if due, err = server.read(data); err != nil || due != actGoOn {
						t.Fatal(due, err)
					}
				case op == 0x0a && !fromClient: // WRITE
					at := server.at
					at.Len = uint32(len(data)) // up to the final 0
					if due != actWriteGoOn || reth != at || !bytes.Equal(p.Payload, data) {
						t.Fatalf("rping writes %q to %v, the machine wants %d of %v", p.Payload, reth, due, at)
					}
				case op == 0x04: // SEND of the server
					if due != actGoOn && due != actWriteGoOn || !bytes.Equal(p.Payload, make([]byte, messageLen)) {
						t.Fatalf("rping sends %x, the machine wants %d", p.Payload, due)
					}
					act, err := client.received(len(p.Payload))
					if err != nil || (act == actFinished) != (due == actWriteGoOn) || (act == actSendNext) != (due == actGoOn) {
						t.Fatal(act, err)
					}
					if act == actFinished {
						seq++
					}
				}
			}
			if seq == 0 || server.done != seq || server.phase != serverIdle || client != clientIdle {
				t.Errorf("%d exchanges, %+v, %v", seq, server, client)
			}
		})
	}
}

func TestPingData(t *testing.T) {
	t.Parallel()
	for _, size := range []int{rpingMin, rpingMin + 1, 64, 1000, rpingMax} {
		for _, seq := range []int{0, 1, 57, 58, 99, 12345, math.MaxInt32, math.MaxInt32 + 1} {
			b := bytes.Repeat([]byte{0xee}, size)
			fillPing(b, seq)
			if err := checkPing(b); err != nil {
				t.Fatalf("size %d, exchange %d: %v: %q", size, seq, err, b)
			}
			if bytes.IndexByte(b, 0) != size-1 {
				t.Fatalf("size %d, exchange %d: a C string of %d bytes", size, seq, bytes.IndexByte(b, 0))
			}
			for i := range b { // every changed byte is seen
				if i >= 200 && i < size-1 {
					continue
				}
				c := bytes.Clone(b)
				c[i] ^= 0x80
				if checkPing(c) == nil {
					t.Fatalf("size %d, exchange %d: byte %d is not looked at", size, seq, i)
				}
				err := comparePing(c, b)
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("byte %d of %d", i, size)) {
					t.Fatal(err)
				}
			}
			if err := comparePing(b, b); err != nil {
				t.Error(err)
			}
		}
	}
	for _, bad := range []string{"", "x", "rdma-ping-", "rdma-ping-1", "rdma-ping-1: ABD\x00", "rdma-ping-: A\x00", "rdma-ping-1: zB\x00", "rdma-ping-1: A", "rdma-ping-1: \x00\x00"} {
		if bad != "" && checkPing([]byte(bad)) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestServerState(t *testing.T) {
	t.Parallel()
	message := func(n uint32) []byte {
		b, err := ib.Remote{Addr: 0x1000, RKey: 7, Len: n}.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	fresh := func() *serverState { return &serverState{limit: 100} }
	for _, n := range []uint32{0, 1, rpingMin - 1, 101, 1 << 16, 1 << 31, math.MaxUint32} {
		if act, err := fresh().received(message(n)); err == nil || act != actNothing {
			t.Errorf("%d bytes: %v, %v", n, act, err)
		}
	}
	for _, n := range []int{0, 1, 15, 17, 64} {
		if act, err := fresh().received(make([]byte, n)); err == nil || act != actNothing {
			t.Errorf("a message of %d bytes: %v, %v", n, act, err)
		}
	}
	s := fresh()
	if act, err := s.received(message(64)); act != actRead || err != nil {
		t.Fatal(act, err)
	}
	if _, err := s.received(message(64)); err == nil {
		t.Error("a message during the read")
	}
	data := make([]byte, 64)
	if _, err := s.read(data); err == nil {
		t.Error("zeros are data")
	}
	fillPing(data, 3)
	if act, err := s.read(data); act != actGoOn || err != nil {
		t.Fatal(act, err)
	}
	if _, err := s.read(data); err == nil {
		t.Error("a second read")
	}
	if _, err := s.received(message(63)); err == nil {
		t.Error("a target that is too small")
	}
	if act, err := s.received(message(64)); act != actWriteGoOn || err != nil || s.done != 1 {
		t.Fatal(act, err)
	}
}

func TestClientState(t *testing.T) {
	t.Parallel()
	var s clientState
	if _, err := s.received(messageLen); err == nil {
		t.Error("a message before the first exchange")
	}
	for range 2 {
		s.begin()
		if _, err := s.received(messageLen - 1); err == nil {
			t.Error("a short message")
		}
		if act, err := s.received(messageLen); act != actSendNext || err != nil {
			t.Fatal(act, err)
		}
		if act, err := s.received(messageLen); act != actFinished || err != nil {
			t.Fatal(act, err)
		}
	}
}

// FuzzServerState plays a client that sends what it likes.
func FuzzServerState(f *testing.F) {
	good := make([]byte, messageLen)
	binary.BigEndian.PutUint32(good[12:], 64)
	data := make([]byte, 64)
	fillPing(data, 1)
	f.Add(good, data, good)
	f.Fuzz(func(t *testing.T, first, data, second []byte) {
		s := serverState{limit: 1000}
		act, err := s.received(first)
		if err != nil {
			return
		}
		if act != actRead || s.size < rpingMin || s.size > s.limit {
			t.Fatalf("%v, %+v", act, s)
		}
		if _, err = s.read(append(data, make([]byte, s.size)...)[:s.size]); err != nil {
			return
		}
		if act, err = s.received(second); err == nil && (act != actWriteGoOn || int(s.at.Len) < s.size) {
			t.Fatalf("%v, %+v", act, s)
		}
	})
}
