package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// clean makes text from outside (names of devices, messages of libraries) fit for a
// terminal: whatever is not printable is written as an escape.
func clean(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				fmt.Fprintf(&b, `\x%02x`, s[i])
				continue
			}
		}
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// escapeJSON does the same to JSON, which may hold characters above ASCII that a
// terminal takes for commands. The meaning stays.
func escapeJSON(b []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(b) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			hi, lo := (r-0x10000)>>10+0xD800, (r-0x10000)&0x3FF+0xDC00
			fmt.Fprintf(&out, `\u%04x\u%04x`, hi, lo)
		}
	}
	return out.Bytes()
}

// lineWriter remembers the first error.
type lineWriter struct {
	w   io.Writer
	err error
}

// linef writes a line; %s of strings are cleaned.
func (l *lineWriter) linef(format string, args ...any) {
	if l.err != nil {
		return
	}
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = clean(s)
		}
	}
	_, l.err = fmt.Fprintf(l.w, format+"\n", args...)
}

func printReport(w io.Writer, r *report) error {
	l := &lineWriter{w: w}
	if r.Default.Error != "" {
		l.linef("default   none: %s", r.Default.Error)
	} else {
		l.linef("default   %s (%s)", r.Default.Provider, r.Default.Why)
	}
	for i := range r.Providers {
		printProvider(l, &r.Providers[i])
	}
	if r.Address != nil {
		printAddress(l, r.Address)
	}
	return l.err
}

func printProvider(l *lineWriter, p *providerReport) {
	switch {
	case p.Error != "":
		l.linef("\n%-9s %s", p.Name, p.Error)
	case len(p.Devices) == 0:
		l.linef("\n%-9s no device", p.Name)
	default:
		l.linef("\n%s", p.Name)
	}
	mend(l, "  ", p.Mend)
	if p.Memlock != 0 {
		l.linef("  this user may register %s (ulimit -l)", size(p.Memlock))
	}
	for i := range p.Devices {
		printDevice(l, &p.Devices[i])
	}
}

func mend(l *lineWriter, indent string, what []string) {
	for _, m := range what {
		l.linef("%sto mend: %s", indent, m)
	}
}

func printDevice(l *lineWriter, d *deviceReport) {
	l.linef("  %s   %s, %s, node %s%s", d.Name, d.NodeType, d.Transport, d.GUID.String(), identity(d))
	if d.Error != "" {
		l.linef("    cannot be used: %s", d.Error)
	}
	mend(l, "    ", d.Mend)
	for i := range d.Ports {
		printPort(l, &d.Ports[i])
	}
	if len(d.Limits) > 0 {
		printWrapped(l, "    limits  ", limitWords(d))
	}
	if d.Caps != "" && d.Caps != "0" {
		printWrapped(l, "    caps    ", strings.Split(d.Caps, "|"))
	}
}

func identity(d *deviceReport) string {
	var s string
	if d.Firmware != "" {
		s += ", firmware " + d.Firmware
	}
	if d.Vendor != 0 || d.Part != 0 {
		s += fmt.Sprintf(", vendor 0x%04x part %d", d.Vendor, d.Part)
	}
	return s
}

func printPort(l *lineWriter, p *portReport) {
	if p.Error != "" {
		l.linef("    port %d  %s", p.Port, p.Error)
		return
	}
	s := fmt.Sprintf("%s, %s, %s, MTU %d of %d", p.State, p.Phys, p.Link, p.ActiveMTU, p.MaxMTU)
	if p.SpeedMbps != 0 {
		s += fmt.Sprintf(", %d Mbit/s", p.SpeedMbps)
	}
	if p.LID != 0 {
		s += fmt.Sprintf(", LID %d, SM LID %d", p.LID, p.SMLID)
	}
	s += ", messages up to " + size(uint64(p.MaxMessage))
	l.linef("    port %d  %s", p.Port, s)
	if len(p.GIDs) == 0 {
		l.linef("      no GID")
		return
	}
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "index\ttype\tnetdev\tMTU\tGID\n")
	for _, g := range p.GIDs {
		text := g.GID
		if g.Address != "" && g.Address != g.GID {
			text += " (" + g.Address + ")"
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\n", g.Index, g.Type, clean(g.NetDev), g.MTU, text)
	}
	t.Flush()
	for line := range strings.Lines(b.String()) {
		l.linef("      %s", strings.TrimRight(line, " \n"))
	}
}

// limitWords gives the limits in the order of limits.
func limitWords(d *deviceReport) []string {
	var words []string
	for _, x := range limits(zeroAttr) {
		v, ok := d.Limits[x.name]
		switch {
		case !ok:
		case x.name == "max_mr_size":
			words = append(words, x.name+"="+size(v))
		case x.name == "page_size_cap":
			words = append(words, fmt.Sprintf("%s=0x%x", x.name, v))
		default:
			words = append(words, fmt.Sprintf("%s=%d", x.name, v))
		}
	}
	return append(words, "atomic_cap="+d.Atomic)
}

// printWrapped writes words in lines of at most 100 characters or so.
func printWrapped(l *lineWriter, head string, words []string) {
	line := head
	for i, w := range words {
		if i > 0 && len(line)+1+len(w) > 100 {
			l.linef("%s", line)
			line = strings.Repeat(" ", len(head)) + w
			continue
		}
		if i > 0 {
			line += " "
		}
		line += w
	}
	l.linef("%s", line)
}

// size writes a number of bytes: 65536 is "64 KiB".
func size(n uint64) string {
	if n == math.MaxUint64 {
		return "any"
	}
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
