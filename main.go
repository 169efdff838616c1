// Holdfast is a reliable-delivery gateway for long connections: see README.md. This file is the table of contents of the
// command line; serve.go is the one of the node.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit codes of every command; push has more (see its help).
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// commandLine is the whole grammar, one field a command.
type commandLine struct {
	Serve   serveCommand   `cmd:"" help:"Run a gateway node."`
	Listen  listenCommand  `cmd:"" help:"Log in as a device; print and acknowledge what arrives."`
	Push    pushCommand    `cmd:"" help:"Push one message over HTTP and report its outcome."`
	Publish publishCommand `cmd:"" help:"Push many messages over the TCP port, from a file or standard input."`
	Trace   traceCommand   `cmd:"" help:"Tell what became of a message."`
	Bench   benchCommand   `cmd:"" help:"Drive a gateway with load: its speed, and whether everything arrives."`
	Config  configCommand  `cmd:"" help:"Print or check the configuration."`
	Token   tokenCommand   `cmd:"" help:"Sign a token, for tests."`
	Version versionCommand `cmd:"" help:"Print the version."`
}

// terminal is what a command may touch of the process.
type terminal struct {
	in      io.Reader
	out     io.Writer
	err     io.Writer
	environ []string
	inTTY   bool // standard input is a person's keyboard
	errTTY  bool // standard error is a person's screen: progress lines make sense
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal kills at once: whoever sends it does not want to wait for the drain.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], &terminal{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ(),
		inTTY: isTTY(os.Stdin), errTTY: isTTY(os.Stderr),
	}))
}

// run parses args, runs the command they name and returns the exit code.
func run(ctx context.Context, args []string, term *terminal) (code int) {
	defer func() {
		if r := recover(); r != nil {
			exited, ok := r.(exitPanic)
			if !ok {
				panic(r)
			}
			code = int(exited)
		}
	}()
	parser, err := kong.New(&commandLine{},
		kong.Name("holdfast"),
		kong.Description("Reliable delivery over long connections: every message is acknowledged, or you know why not."),
		kong.Writers(term.out, term.err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(term),
		// Kong goes on parsing when Exit returns, so --help has to leave by a panic of our own.
		kong.Exit(func(code int) { panic(exitPanic(code)) }),
	)
	if err != nil {
		panic(fmt.Sprintf("command line grammar: %v", err)) // our own mistake, found by any test
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(term.err, "holdfast: %v\nTry: holdfast --help\n", err)
		return exitUsage
	}
	if err := parsed.Run(); err != nil {
		return report(term, err)
	}
	return exitOK
}

// exitPanic carries an exit code out of kong.
type exitPanic int

// exitCode is an error that ends the process with its own code.
type exitCode struct {
	code int
	err  error // nil: everything has been said already
}

// Error is the text of the error inside.
func (e *exitCode) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap gives the error inside.
func (e *exitCode) Unwrap() error { return e.err }

// report says what went wrong and returns the exit code for it.
func report(term *terminal, err error) int {
	var coded *exitCode
	if !errors.As(err, &coded) {
		coded = &exitCode{code: exitError, err: err}
	}
	if coded.err != nil {
		fmt.Fprintf(term.err, "holdfast: %v\n", coded.err)
	}
	return coded.code
}

// isTTY reports whether f is a terminal.
func isTTY(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
