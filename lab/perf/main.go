// Command perf measures verbs between two processes in the way of perftest (ib_send_lat,
// ib_send_bw, ib_write_bw, ib_read_bw), and sockets in the way of rstream, and compares
// itself with those in one boot of one guest of the lab. lab/perf/run does all of it.
//
//	perf -serve ADDR:PORT -test TEST [-flags]     one end, which serves one connection
//	perf -connect ADDR:PORT -test TEST [-flags]   the other, which prints one number
//	perf -compare [-rounds N] [-only TEXT]        everything, in turns, and a table
//
// VERBENA_PROVIDER says whose devices are measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	rdma "github.com/verbena-rdma/verbena"
	"github.com/verbena-rdma/verbena/cm"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// options of one measurement; both ends have the same.
type options struct {
	test    string
	size    int
	n       int
	depth   int    // of the send queue; of sockets, messages in a row
	wait    string // how an end waits
	network string // of sockets: rdma or tcp
}

// Tests, named as those of perftest.
const (
	sendLat = "send_lat"
	sendBW  = "send_bw"
	writeBW = "write_bw"
	readBW  = "read_bw"
)

// How an end waits.
const (
	polling  = "poll"     // looks until there is something
	asleep   = "sleep"    // sleeps until it is told
	adaptive = "adaptive" // looks for a while if that has paid, and then sleeps
)

const (
	recvDepth = 512 // as perftest
	signal    = 100 // of so many requests one is signaled, as perftest
	inline    = 236 // as perftest, for latency
	limit     = 5 * time.Minute
	// 4.096 µs × 2^19: on a busy machine the 67 ms of perftest lead to retransmissions, which
	// are then all that is measured. perftest is told the same (-u 19).
	ackTimeout = 2147 * time.Millisecond
)

func main() {
	var o options
	serve := flag.String("serve", "", "serve one connection on `ADDR`")
	connect := flag.String("connect", "", "connect to `ADDR`, and print the number")
	all := flag.Bool("compare", false, "measure everything, against perftest, rstream and TCP")
	only := flag.String("only", "", "with -compare: the rows whose name has `TEXT`")
	rounds := flag.Int("rounds", 7, "with -compare: how often")
	flag.StringVar(&o.test, "test", sendLat, "send_lat, send_bw, write_bw, read_bw, socket_lat or socket_bw")
	flag.StringVar(&o.network, "network", "rdma", "of the sockets, rdma or tcp")
	flag.IntVar(&o.size, "size", 2, "bytes of a message")
	flag.IntVar(&o.n, "n", 1000, "messages")
	flag.IntVar(&o.depth, "depth", 128, "requests outstanding")
	flag.StringVar(&o.wait, "wait", polling, "poll, sleep or adaptive")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var err error
	switch {
	case *all:
		err = compare(*rounds, *only)
	case *serve != "" && (o.test == sockLat || o.test == sockBW):
		err = serveSocket(ctx, *serve, &o)
	case *connect != "" && (o.test == sockLat || o.test == sockBW):
		err = connectSocket(ctx, *connect, &o)
	case *serve != "":
		err = runServer(ctx, *serve, &o)
	case *connect != "":
		err = runClient(ctx, *connect, &o)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "perf:", err)
		os.Exit(1)
	}
}

// end is one end of the connection.
type end struct {
	o      *options
	scq    *verbs.CQ
	rcq    *verbs.CQ
	mr     *verbs.MR
	qp     *verbs.QP
	sent   int // requests posted
	done   int // of them, known to be complete
	posted int // receives
	taken  int // of them, complete and not posted again
	recvs  [16]verbs.RecvWR
	wc     [16]verbs.WC
	ctx    context.Context
	remote ib.Remote
	wr     [1]verbs.SendWR // the request that is posted again and again
}

func (e *end) open(d *verbs.Device, create func(*verbs.PD, verbs.QPConfig) (*verbs.QP, error)) error {
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	if e.scq, err = d.CreateCQ(e.o.depth+8, nil); err != nil {
		return err
	}
	if e.rcq, err = d.CreateCQ(recvDepth+8, nil); err != nil {
		return err
	}
	if e.o.wait == adaptive {
		e.scq.SetSpin(verbs.Adaptive)
		e.rcq.SetSpin(verbs.Adaptive)
	}
	if e.mr, err = pd.Alloc(2*e.o.size, ib.LocalWrite|ib.RemoteWrite|ib.RemoteRead); err != nil {
		return err
	}
	cfg := verbs.QPConfig{SendCQ: e.scq, RecvCQ: e.rcq, MaxSendWR: e.o.depth, MaxRecvWR: recvDepth}
	if e.o.test == sendLat && e.o.size <= inline {
		cfg.MaxInline = inline
	}
	if e.qp, err = create(pd, cfg); err != nil {
		return err
	}
	if e.o.test == sendLat || e.o.test == sendBW {
		for i := range e.recvs {
			e.recvs[i] = verbs.Recv(0, e.mr.SGE(e.o.size, e.o.size))
		}
		for e.posted < recvDepth {
			n, err := e.qp.PostRecvList(e.recvs[:])
			if err != nil {
				return err
			}
			e.posted += n
		}
	}
	return nil
}

// prepare makes the request of the test, which only its number and its flags tell from the next.
func (e *end) prepare() {
	l := e.mr.SGE(0, e.o.size)
	switch e.o.test {
	case writeBW:
		e.wr[0] = verbs.Write(0, e.remote, l, 0)
	case readBW:
		e.wr[0] = verbs.Read(0, e.remote, l, 0)
	default:
		e.wr[0] = verbs.Send(0, l, 0)
	}
}

// post posts the next request of the test.
func (e *end) post() error {
	wr := &e.wr[0]
	wr.ID, wr.Flags = uint64(e.sent), 0
	if (e.sent+1)%signal == 0 || e.sent+1 == e.o.n || e.o.test == sendLat {
		wr.Flags |= ib.Signaled
	}
	if e.o.test == sendLat && e.o.size <= inline {
		wr.Flags |= ib.Inline
	}
	e.sent++
	_, err := e.qp.PostSendList(e.wr[:])
	return err
}

// poll waits for completions and gives the number of those before the first that failed. Who does
// not sleep does nothing but look, as perftest does.
func (e *end) poll(cq *verbs.CQ) (n int, err error) {
	for n == 0 && err == nil {
		if e.o.wait != polling {
			n, err = cq.Wait(e.ctx, e.wc[:])
		} else {
			n, err = cq.Poll(e.wc[:])
		}
	}
	for i := range n {
		if e.wc[i].Status != ib.StatusSuccess {
			return i, fmt.Errorf("%v: %w", e.qp.Err(), e.wc[i].Err())
		}
	}
	return n, err
}

func runServer(ctx context.Context, addr string, o *options) error {
	p, _, err := rdma.Provider(rdma.Auto)
	if err != nil {
		return err
	}
	l, err := cm.Listen(p, addr, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("ready")
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer req.Close()
	e := &end{o: o, ctx: ctx}
	if err := e.open(req.Device(), req.CreateQP); err != nil {
		return err
	}
	private, err := e.mr.Remote(0, o.size).MarshalBinary()
	if err != nil {
		return err
	}
	conn, err := req.Accept(ctx, &cm.ConnParam{Private: private, AckTimeout: ackTimeout, NoReceives: true})
	if err != nil {
		return err
	}
	defer conn.Close()
	e.prepare()
	switch o.test {
	case sendLat:
		_, err = e.pingPong(false)
	case sendBW:
		err = e.sink()
	}
	if err != nil {
		return err
	}
	select {
	case <-conn.Done():
	case <-ctx.Done():
	}
	return nil
}

func runClient(ctx context.Context, addr string, o *options) error {
	p, _, err := rdma.Provider(rdma.Auto)
	if err != nil {
		return err
	}
	route, err := cm.Resolve(ctx, p, addr, nil)
	if err != nil {
		return err
	}
	defer route.Close()
	e := &end{o: o, ctx: ctx}
	if err := e.open(route.Device(), route.CreateQP); err != nil {
		return err
	}
	conn, err := route.Connect(ctx, &cm.ConnParam{AckTimeout: ackTimeout, NoReceives: true})
	if err != nil {
		return err
	}
	defer conn.Close()
	if e.remote, _, err = ib.ConsumeRemote(conn.Private()); err != nil {
		return err
	}
	e.prepare()
	if o.test == sendLat {
		typical, err := e.pingPong(true)
		if err != nil {
			return err
		}
		fmt.Printf("result %.3f\n", float64(typical)/float64(time.Microsecond))
		return nil
	}
	mibs, err := e.stream()
	if err != nil {
		return err
	}
	fmt.Printf("result %.3f\n", mibs)
	return nil
}
