// Command penstock-nvml reads what NVIDIA's driver says of the GPUs and writes it to
// stdout, a line per reading (penstock/scraper/nvml/wire). penstock starts it and
// replaces it when it hangs, crashes or grows. It ends when its stdin closes, that is
// when penstock has ended, and on SIGTERM.
//
// It calls NVML through go-nvml, which needs cgo; built without cgo it says that there
// is no library. It never asks for process lists or fans: those calls hold the driver's
// lock for milliseconds.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"penstock/scraper/nvml/wire"
)

const (
	// heartbeat is how often a line is written at least.
	heartbeat = 500 * time.Millisecond
	// shutWithin is how long the library may take to release the devices; the process
	// ends then, which releases them too, unless the driver itself hangs.
	shutWithin = 500 * time.Millisecond
)

func main() {
	os.Exit(run(os.Args[1:], newLibrary))
}

// run returns the exit status: 0 ended as told, 1 there is nothing to read, 2 usage,
// 3 a call hangs.
func run(args []string, open func(*calls) library) int {
	flags := flag.NewFlagSet("penstock-nvml", flag.ContinueOnError)
	deadline := flags.Duration("deadline", time.Second, "longest `time` of one call of the library; then the process ends")
	check := flags.Duration("check", 0, "read for this `time`, print what each call took, and end")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *deadline <= 0 || *check < 0 {
		fmt.Fprintln(os.Stderr, "penstock-nvml: times are above 0, and there are no arguments; see --help")
		return 2
	}
	stop := make(chan struct{})
	signal.Ignore(os.Interrupt) // Ctrl-C is for penstock, which drains first
	if *check > 0 {
		time.AfterFunc(*check, func() { close(stop) })
		return measure(os.Stdout, open, *deadline, stop)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(closed)
	}()
	go func() {
		select {
		case <-term:
		case <-closed:
		}
		time.AfterFunc(shutWithin, func() { os.Exit(0) })
		close(stop)
	}()
	return write(os.Stdout, open, *deadline, stop)
}

// write writes lines until stop closes, one says the end, or a call hangs.
func write(to io.Writer, open func(*calls) library, deadline time.Duration, stop <-chan struct{}) int {
	lines, done := make(chan wire.Line), make(chan struct{})
	s := newSampler(open, deadline, lines, stop)
	go func() {
		defer close(done)
		s.run()
	}()
	beat := time.NewTicker(min(heartbeat, deadline/2))
	defer beat.Stop()
	var last wire.Line
	put := func() bool {
		last.V, last.Seq, last.Up = wire.Version, last.Seq+1, time.Since(s.start)
		text, err := json.Marshal(&last)
		if err == nil {
			_, err = to.Write(append(text, '\n'))
		}
		last.XIDs, last.Missing = nil, nil
		return err == nil
	}
	for {
		select {
		case <-done:
			return 0
		case l := <-lines:
			l.Seq = last.Seq
			last = l
		case now := <-beat.C:
			if name := s.calls.overdue(now); name != "" {
				last.End, last.Call = wire.EndHang, name
			}
		}
		switch ok := put(); {
		case !ok, last.End == wire.EndInit, last.End == wire.EndCalls:
			return 1
		case last.End == wire.EndHang:
			return 3
		case last.End == wire.EndUnbind:
			return 0
		}
	}
}

// measure reads until stop closes and prints how long each call took.
func measure(to io.Writer, open func(*calls) library, deadline time.Duration, stop <-chan struct{}) int {
	lines, done := make(chan wire.Line), make(chan struct{})
	s := newSampler(open, deadline, lines, stop)
	note, took := s.calls.took, map[string][]time.Duration{}
	s.calls.took = func(name string, d time.Duration) {
		note(name, d)
		took[name] = append(took[name], d)
	}
	go func() {
		defer close(done)
		s.run()
	}()
	var last wire.Line
	rounds := 0
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for running := true; running; {
		select {
		case last = <-lines:
			rounds++
		case now := <-beat.C:
			if name := s.calls.overdue(now); name != "" {
				fmt.Fprintf(to, "%s does not return\n", name)
				return 3
			}
		case <-done:
			running = false
		}
	}
	if last.End != "" {
		fmt.Fprintf(to, "ended: %s, NVML return code %d\n", last.End, last.Code)
		return 1
	}
	fmt.Fprintf(to, "driver %s, %d GPUs, %d readings, every %v, widened %d times, %v\n",
		last.Driver, len(last.GPUs), rounds, last.Every, last.Widened, time.Since(s.start).Round(time.Second))
	if missing := s.lib.missing(); len(missing) > 0 {
		fmt.Fprintf(to, "functions this driver lacks: %s\n", strings.Join(missing, " "))
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "calls\tp50\tp99\tmax\t\tfunction")
	for _, name := range slices.Sorted(maps.Keys(took)) {
		d := took[name]
		fmt.Fprintf(table, "%d\t%v\t%v\t%v\t\t%s\n", len(d), quantile(d, 0.5), quantile(d, 0.99), d[len(d)-1], name)
	}
	if err := table.Flush(); err != nil {
		return 1
	}
	return 0
}
