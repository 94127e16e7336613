// Command verbena shows what an RDMA installation does, and measures it.
//
//	verbena ping            both ends on this machine
//	verbena ping ADDR       a peer: another verbena, or rdma-core's rping
//	verbena devices         what devices there are, and which one is used
//	verbena proxy           carry a TCP service over RDMA
//	verbena help            what else there is
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
)

// command is a subcommand. Each has a file of its own and a line in commands.
type command struct {
	name  string
	args  string // of the usage line
	short string // what it is for, in one line
	run   func(ctx context.Context, e *env, args []string) error
}

var commands = []*command{pingCommand, devicesCommand, proxyCommand, versionCommand}

// env is what a command may talk to. ctx of its run ends with the first interrupt.
type env struct {
	cmd            *command
	stdin          io.Reader
	stdout, stderr io.Writer
}

// usageError is a mistake in the command line. Its command's usage has been shown if
// shown is set.
type usageError struct {
	text  string
	shown bool
}

func (e *usageError) Error() string { return e.text }

// Exit codes.
const (
	exitOK = iota
	exitFailed
	exitUsage
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second interrupt ends the program whatever it does.
	context.AfterFunc(ctx, stop)
	os.Exit(dispatch(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// dispatch runs the command that args name and gives the exit code.
func dispatch(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return exitUsage
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		if len(args) == 0 {
			usage(stdout)
			return exitOK
		}
		name, args = args[0], []string{"-h"}
	case "-version", "--version":
		name = versionCommand.name
	}
	for _, c := range commands {
		if c.name != name {
			continue
		}
		err := c.run(ctx, &env{cmd: c, stdin: stdin, stdout: stdout, stderr: stderr}, args)
		var wrong *usageError
		switch {
		case err == nil, errors.Is(err, flag.ErrHelp):
			return exitOK
		case errors.As(err, &wrong):
			fmt.Fprintf(stderr, "verbena %s: %v\n", name, err)
			if !wrong.shown {
				fmt.Fprintf(stderr, "usage: verbena %s %s\n", c.name, c.args)
			}
			return exitUsage
		default:
			fmt.Fprintf(stderr, "verbena %s: %v\n", name, err)
			return exitFailed
		}
	}
	fmt.Fprintf(stderr, "verbena: no command %q; verbena help lists them\n", name)
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprintf(w, "verbena COMMAND [-flags] [arguments]\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.short)
	}
	fmt.Fprintf(w, "\nverbena help COMMAND says more.\n")
}

// flags makes a flag set for a command. Mistakes come back from parse.
func (e *env) flags() *flag.FlagSet {
	fs := flag.NewFlagSet(e.cmd.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// parse parses args. -h prints text and the flags.
func (e *env) parse(fs *flag.FlagSet, args []string, text string) error {
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(e.stdout, "verbena %s %s\n\n%s\n\n", e.cmd.name, e.cmd.args, strings.TrimSpace(text))
		fs.SetOutput(e.stdout)
		fs.PrintDefaults()
		return err
	case err != nil:
		return &usageError{text: err.Error()}
	}
	return nil
}

var versionCommand = &command{
	name:  "version",
	short: "say which version this is",
	run: func(_ context.Context, e *env, args []string) error {
		fs := e.flags()
		if err := e.parse(fs, args, "Version says which version of verbena this is, and what built it."); err != nil {
			return err
		}
		b, ok := debug.ReadBuildInfo()
		if !ok {
			return errors.New("built without information about the build")
		}
		fmt.Fprintf(e.stdout, "verbena %s, %s\n", b.Main.Version, b.GoVersion)
		return nil
	},
}
