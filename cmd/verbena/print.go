package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// printer writes what happens, line by line, from any goroutine.
type printer struct {
	verbose bool
	start   time.Time

	mu  sync.Mutex
	out *bufio.Writer
	now bool // write every line at once
}

// newPrinter makes a printer. One that is not prompt collects lines, so that writing
// does not slow down what is measured: flush when there is time.
func newPrinter(w io.Writer, verbose, prompt bool) *printer {
	return &printer{verbose: verbose, start: time.Now(), out: bufio.NewWriterSize(w, 16<<10), now: prompt}
}

func (p *printer) linef(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
	if p.now {
		p.out.Flush()
	}
}

func (p *printer) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Flush()
}

// eventf writes a line with the time since the start.
func (p *printer) eventf(kind, format string, args ...any) {
	p.linef("%12.6f %-5s %s", time.Since(p.start).Seconds(), kind, fmt.Sprintf(format, args...))
}

// cm writes an event of the connection manager.
func (p *printer) cm(ev *cm.Event) {
	if !p.verbose {
		return
	}
	var b strings.Builder
	b.WriteString(ev.Type.String())
	if ev.ID != nil {
		if a := ev.ID.LocalAddr(); a.IsValid() {
			fmt.Fprintf(&b, " local %v", a)
		}
		if a := ev.ID.RemoteAddr(); a.IsValid() {
			fmt.Fprintf(&b, " remote %v", a)
		}
	}
	if ev.Err != nil {
		fmt.Fprintf(&b, ": %v", ev.Err)
	}
	p.eventf("cm", "%s", &b)
}

// wc writes a completion.
func (p *printer) wc(wc *verbs.WC) {
	if !p.verbose {
		return
	}
	if wc.Status != ib.StatusSuccess {
		p.eventf("wc", "%v %v on QP %v", wc.Opcode, wc.Status, qpNum(wc.QP))
		return
	}
	if wc.Opcode.IsRecv() { // the others have no length
		p.eventf("wc", "%v of %d bytes on QP %v", wc.Opcode, wc.ByteLen, qpNum(wc.QP))
		return
	}
	p.eventf("wc", "%v on QP %v", wc.Opcode, qpNum(wc.QP))
}

func qpNum(qp *verbs.QP) ib.QPN {
	if qp == nil {
		return 0
	}
	return qp.Num()
}

// async writes an asynchronous event.
func (p *printer) async(ev *verbs.AsyncEvent) {
	if !p.verbose {
		return
	}
	switch {
	case ev.QP != nil:
		p.eventf("async", "%v of QP %v", ev.Type, ev.QP.Num())
	case ev.CQ != nil:
		p.eventf("async", "%v of a completion queue", ev.Type)
	case ev.Port != 0:
		p.eventf("async", "%v of port %d", ev.Type, ev.Port)
	default:
		p.eventf("async", "%v", ev.Type)
	}
}
