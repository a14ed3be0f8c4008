package vllm

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"unsafe"
)

var errEventTooLong = errors.New("event is longer than the limit")

// event is one SSE event in the one form clients get: `data: ` with one space,
// line feeds only, one data line, a blank line at the end. Both slices point into
// the reader and hold until its next call.
type event struct {
	block []byte
	data  []byte // the part of block after "data: ", without line ends
}

// eventReader cuts a byte stream into events. Events already in that form, which
// is all a vLLM sends, are not copied. Comments, ids and retry times are dropped:
// they say nothing about the answer, and an id confuses client libraries.
type eventReader struct {
	read  func([]byte) (int, error) // more bytes
	limit int                       // bytes of one event, its lines and ends included

	buf        []byte // grows to limit, then errEventTooLong
	start, end int    // buf[start:end] is not yet given out
	line, scan int    // start of the line being read; bytes before scan hold no more line end
	joined     []byte // an event that had to be rewritten
}

const firstBuffer = 4 << 10 // net/http's own read size; an event of vLLM has 200-400 bytes

// next returns the next event that has data. An error of the source comes back as
// it is, also io.EOF, and leaves out an event that was not complete.
func (r *eventReader) next() (event, error) {
	for {
		n := bytes.IndexByte(r.buf[r.scan:r.end], '\n')
		if n < 0 {
			r.scan = r.end
			if err := r.fill(); err != nil {
				return event{}, err
			}
			continue
		}
		lineEnd := r.scan + n
		line := r.buf[r.line:lineEnd]
		r.line, r.scan = lineEnd+1, lineEnd+1
		if len(line) != 0 && !(len(line) == 1 && line[0] == '\r') {
			continue
		}
		block := r.buf[r.start:r.line]
		r.start = r.line
		if e, ok := r.parse(block); ok {
			return e, nil
		}
	}
}

// fill reads more bytes behind end, after making room.
func (r *eventReader) fill() error {
	if r.start > 0 && (r.start == r.end || r.end == len(r.buf)) {
		copy(r.buf, r.buf[r.start:r.end])
		r.end, r.line, r.scan = r.end-r.start, r.line-r.start, r.scan-r.start
		r.start = 0
	}
	if r.end == len(r.buf) {
		if r.end == r.limit {
			return fmt.Errorf("%w of %d bytes", errEventTooLong, r.limit)
		}
		grown := make([]byte, min(max(2*len(r.buf), firstBuffer), r.limit))
		copy(grown, r.buf)
		r.buf = grown
	}
	n, err := r.read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil // an error comes again with the next read
	}
	return err
}

// parse reads one block of lines that ends with a blank line. ok is false for a
// block without data.
func (r *eventReader) parse(block []byte) (e event, ok bool) {
	const prefix, end = "data: ", "\n\n"
	if len(block) > len(prefix)+len(end) && text(block[:len(prefix)]) == prefix &&
		bytes.IndexByte(block, '\n') == len(block)-len(end) && bytes.IndexByte(block, '\r') < 0 {
		return event{block, block[len(prefix) : len(block)-len(end)]}, true
	}

	out := r.joined[:0]
	for field, value := range fields(block) {
		if field == "event" {
			out = append(append(append(out[:0], "event: "...), value...), '\n')
		}
	}
	out = append(out, prefix...)
	start := len(out)
	for field, value := range fields(block) {
		if field != "data" {
			continue
		}
		if len(out) > start {
			out = append(out, ' ') // a line end between two parts of JSON is white space
		}
		out = append(out, value...)
	}
	stop := len(out)
	out = append(out, end...)
	r.joined = out
	return event{out, out[start:stop]}, stop > start
}

// fields are the name and value of each line of a block; a comment has no name.
func fields(block []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for line := range bytes.Lines(block) {
			line = bytes.ReplaceAll(bytes.TrimRight(line, "\r\n"), []byte("\r"), nil)
			name, value, _ := bytes.Cut(line, []byte(":"))
			if !yield(string(name), bytes.TrimPrefix(value, []byte(" "))) {
				return
			}
		}
	}
}

// text is b as a string without a copy. The caller lets no part of it outlive the
// next change of b.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
