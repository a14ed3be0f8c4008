package nvml

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"penstock/scraper/nvml/wire"
)

// child is a running helper.
type child struct {
	lines  chan wire.Line // unbuffered: a reading nobody took yet holds up the helper, not memory
	broken chan error     // of size 1: io.EOF, or why a line is none; nothing comes after it
	exited chan struct{}  // closed once the kernel has let go of it

	hangUp func()       // closes its stdin: it releases its devices and ends
	kill   func()       // SIGKILL; does not wait
	close  func()       // ends the goroutines that read it
	rss    func() int64 // resident bytes; 0 = not known
	last   func() string
}

// end ends the child, gently where there is time, and reports whether it is gone. One
// that the kernel cannot end, in an uninterruptible wait in the driver, is left.
func (c *child) end(gently bool) bool {
	defer c.close()
	if gently {
		c.hangUp()
		if c.gone(byItself) {
			return true
		}
	}
	c.kill()
	return c.gone(reapWithin)
}

func (c *child) gone(within time.Duration) bool {
	select {
	case <-c.exited:
		return true
	case <-time.After(within):
		return false
	}
}

// exec starts the helper.
func (r *Reader) exec() (*child, error) {
	path, err := r.find()
	if err != nil {
		return nil, err
	}
	var files []*os.File
	pipe := func() (in, out *os.File) {
		if err == nil {
			if in, out, err = os.Pipe(); err == nil {
				files = append(files, in, out)
			}
		}
		return in, out
	}
	stdin, hold := pipe()
	lines, stdout := pipe()
	words, stderr := pipe()
	if err != nil {
		closeAll(files)
		return nil, err
	}
	cmd := exec.Command(path, "--deadline", r.cfg.Deadline.String())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr // files: no copying goroutine, so Wait waits for the process only
	cmd.Env = environ(os.Environ())
	if err := cmd.Start(); err != nil {
		closeAll(files)
		return nil, err
	}
	closeAll([]*os.File{stdin, stdout, stderr})

	c := &child{
		lines: make(chan wire.Line), broken: make(chan error, 1), exited: make(chan struct{}),
		hangUp: func() { _ = hold.Close() },
		kill:   func() { _ = cmd.Process.Kill() },
		rss:    func() int64 { return resident(cmd.Process.Pid) },
	}
	go func() { // the one that may outlive us
		_ = cmd.Wait()
		close(c.exited)
	}()
	quit, said := make(chan struct{}), make(chan string, 1)
	var readers sync.WaitGroup
	readers.Go(func() { c.broken <- readLines(lines, c.lines, quit) })
	readers.Go(func() { firstWords(words, said) })
	c.close = func() {
		close(quit)
		closeAll([]*os.File{hold, lines, words})
		readers.Wait()
	}
	c.last = func() string {
		text := "no exit status"
		if c.gone(reapWithin) {
			text = cmd.ProcessState.String()
		}
		select {
		case s := <-said:
			text += ": " + s
		case <-time.After(reapWithin):
		}
		return text
	}
	return c, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a second time is an error that says nothing
	}
}

// readLines hands lines on until they end, one is none, or quit closes.
func readLines(from io.Reader, to chan<- wire.Line, quit <-chan struct{}) error {
	in := bufio.NewScanner(from)
	in.Buffer(make([]byte, 0, 4<<10), wire.MaxLine)
	for in.Scan() {
		l, err := wire.Parse(in.Bytes())
		if err != nil {
			return err
		}
		select {
		case to <- l:
		case <-quit:
			return io.EOF
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return io.EOF
}

// firstWords sends the first line of stderr, at most 256 bytes of it, and drops the
// rest: a crash begins with its cause and goes on for pages.
func firstWords(from io.Reader, said chan<- string) {
	in := bufio.NewReaderSize(from, 256)
	line, _ := in.ReadSlice('\n')
	said <- string(bytes.ToValidUTF8(bytes.TrimSpace(line), nil))
	_, _ = io.Copy(io.Discard, in)
}

// environ is what the helper sees: none of our settings, which may be secrets, and no
// LD_BIND_NOW, under which it cannot start (its library is bound lazily).
func environ(all []string) []string {
	var env []string
	for _, kv := range all {
		if !strings.HasPrefix(kv, "PENSTOCK_") && !strings.HasPrefix(kv, "LD_BIND_NOW=") {
			env = append(env, kv)
		}
	}
	return env
}

// resident reads a process's resident bytes; 0 where the system does not tell.
func resident(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(syscall.Getpagesize())
}
