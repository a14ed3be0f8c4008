package scraper

import (
	"bytes"
	"errors"
	"strconv"
)

var errLine = errors.New("malformed line")

// labels are the few we look at, raw: a value with escapes keeps its backslashes,
// which tells engines apart just as well.
type labels struct {
	engine []byte
	match  []byte // of the family's label
	size   float64
	blocks float64
	block  float64
}

// scan adds every series of page that the table names. It looks at the first bytes
// of a line and reads on only where it may have to; other lines are not checked
// beyond being plausible. It does not allocate on a good page.
func (r *reading) scan(page []byte) error {
	for len(page) > 0 {
		var line []byte
		if end := bytes.IndexByte(page, '\n'); end >= 0 {
			line, page = page[:end], page[end+1:]
		} else {
			line, page = page, nil // only "# EOF" gets here, see whole
		}
		if len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
			line = skipBlanks(line)
		}
		if len(line) <= len(prefix) || line[0] != prefix[0] || string(line[:len(prefix)]) != prefix {
			if len(line) > 0 && !opensLine[line[0]] {
				return &Error{Problem: Garbage, Err: errors.New("not a metrics page")}
			}
			continue
		}
		names := byLetter[line[len(prefix)]]
		for i := range names {
			w := &names[i]
			if len(line) <= len(w.name) || string(line[:len(w.name)]) != w.name || inName[line[len(w.name)]] {
				continue
			}
			if err := r.series(w, line[len(w.name):]); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// series reads what follows the name: labels, value, and a timestamp or exemplar
// that are checked or ignored.
func (r *reading) series(w *wanted, rest []byte) error {
	var l labels
	rest = skipBlanks(bytes.TrimSuffix(rest, []byte("\r")))
	f := &table[w.family]
	if len(rest) > 0 && rest[0] == '{' {
		var ok bool
		if rest, ok = l.parse(rest[1:], f.label); !ok {
			return &Error{Problem: Garbage, Name: w.name, Err: errLine}
		}
	}
	token, rest := cutBlank(skipBlanks(rest))
	value, ok := number(token)
	if !ok {
		return &Error{Problem: Garbage, Name: w.name, Err: errLine}
	}
	if stamp, tail := cutBlank(skipBlanks(rest)); len(stamp) > 0 && stamp[0] != '#' {
		tail = skipBlanks(tail)
		if _, ok := number(stamp); !ok || len(tail) > 0 && tail[0] != '#' {
			return &Error{Problem: Garbage, Name: w.name, Err: errLine}
		}
	}
	if f.label != "" && string(l.match) != f.value {
		return nil
	}
	return r.add(w, &l, value)
}

// tokens is how many KV tokens the engine's labels say a rank can use: by its size
// in tokens, which is per rank, and by its blocks, which are summed over the ranks
// already, on each rank's series. One block is vLLM's own null block. Not positive
// where labels are absent or read "None".
func (l *labels) tokens() (bySize, byBlocks float64) {
	if l.size > 0 {
		bySize = l.size - l.block
	}
	return bySize, (l.blocks - 1) * l.block
}

// parse reads the labels after the opening brace and returns what follows the
// closing one. match is the name of the family's own label, "" if it has none.
func (l *labels) parse(b []byte, match string) (rest []byte, ok bool) {
	for {
		b = skipBlanks(b)
		if len(b) == 0 {
			return nil, false
		}
		if b[0] == '}' {
			return b[1:], true
		}
		var name, value []byte
		if b[0] == '"' {
			name, b, ok = quoted(b)
		} else {
			name, b, ok = labelName(b)
		}
		if b = skipBlanks(b); !ok || len(b) == 0 || b[0] != '=' {
			return nil, false
		}
		if value, b, ok = quoted(skipBlanks(b[1:])); !ok {
			return nil, false
		}
		l.set(name, value, match)
		b = skipBlanks(b)
		switch {
		case len(b) > 0 && b[0] == ',':
			b = b[1:]
		case len(b) > 0 && b[0] == '}':
		default:
			return nil, false
		}
	}
}

func (l *labels) set(name, value []byte, match string) {
	switch string(name) {
	case "engine":
		l.engine = value
	case "kv_cache_size_tokens":
		l.size, _ = number(value) // may read "None": then 0, not known
	case "num_gpu_blocks":
		l.blocks, _ = number(value)
	case "block_size":
		l.block, _ = number(value)
	default:
		if match != "" && string(name) == match {
			l.match = value
		}
	}
}

func labelName(b []byte) (name, rest []byte, ok bool) {
	i := 0
	for i < len(b) && inLabel[b[i]] {
		i++
	}
	return b[:i], b[i:], i > 0
}

// quoted cuts a quoted string off b; the string is returned as it is written.
func quoted(b []byte) (value, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '"' {
		return nil, nil, false
	}
	b = b[1:]
	end := bytes.IndexByte(b, '"')
	if end < 0 {
		return nil, nil, false
	}
	if bytes.IndexByte(b[:end], '\\') < 0 {
		return b[:end], b[end+1:], true
	}
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return b[:i], b[i+1:], true
		case '\\':
			if i++; i == len(b) || b[i] != '"' && b[i] != '\\' && b[i] != 'n' {
				return nil, nil, false
			}
		}
	}
	return nil, nil, false
}

// number parses what Prometheus accepts: Go's floats without hex and underscores.
func number(b []byte) (float64, bool) {
	for _, c := range b {
		if c == '_' || c == 'p' || c == 'P' {
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil
}

func skipBlanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

func cutBlank(b []byte) (token, rest []byte) {
	for i, c := range b {
		if c == ' ' || c == '\t' {
			return b[:i], b[i:]
		}
	}
	return b, nil
}

// What a line may start with (a name, a comment, a UTF-8 name in braces, the end of
// an empty line), what a metric name goes on with, and what a label name is made of.
var (
	opensLine = charset(letters + "_:#{\r")
	inName    = charset(letters + digits + `_:"`)
	inLabel   = charset(letters + digits + "_")
)

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

func charset(chars string) (set [256]bool) {
	for i := range len(chars) {
		set[chars[i]] = true
	}
	return set
}
