package gossip

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// problem is a kind of line in memberlist's log.
type problem int

const (
	other problem = iota
	decrypt
	plaintext
	label
	conflict
	behind
	network
	malformed
	suspect
	failed
	refuted
	oneway
	unreachable
	stateKept
	stateRefused
	problemEnd
)

// kinds are tried in order; other comes last, whatever the line. memberlist has
// no other way to tell any of this.
var kinds = [problemEnd]struct {
	name    string
	level   slog.Level
	message string
	texts   []string // any of them in the line
}{
	other:       {"other", slog.LevelWarn, "gossip: memberlist complains", nil},
	decrypt:     {"decrypt", slog.LevelWarn, "gossip: what a node sends cannot be decrypted; its key file and this one share no key, or it is no member", []string{"Decrypt packet failed", "could decrypt the message", "too small to decrypt", "unsupported encryption version"}},
	plaintext:   {"plaintext", slog.LevelWarn, "gossip: one node encrypts and another does not; give all the same key file", []string{"state is not encrypted", "state is encrypted"}},
	label:       {"label", slog.LevelWarn, "gossip: a node of another fleet, or none, calls", []string{" label"}},
	conflict:    {"conflict", slog.LevelWarn, "gossip: two addresses with one node name; a replaced node is taken once the old one has failed, a second one never", []string{"Conflicting address"}},
	behind:      {"behind", slog.LevelWarn, "gossip: packets come faster than they are handled", []string{"handler queue full", "Too many pending push/pull"}},
	network:     {"network", slog.LevelWarn, "gossip: a member outside the allowed networks", []string{"Rejected "}},
	malformed:   {"malformed", slog.LevelWarn, "gossip: a packet or stream makes no sense", []string{"decode", "msgType", "msg type", "Message type", "truncated", "checksum", "missing message type", "protocol version"}},
	suspect:     {"suspect", slog.LevelInfo, "gossip: a member does not answer", []string{"Suspect "}},
	failed:      {"failed", slog.LevelInfo, "gossip: a member counts as gone", []string{"Marking "}},
	refuted:     {"refuted", slog.LevelInfo, "gossip: others thought this node gone", []string{"Refuting "}},
	oneway:      {"oneway", slog.LevelWarn, "gossip: a member answers over TCP and not over UDP; open the port for UDP both ways", []string{"UDP probes failed"}},
	unreachable: {"unreachable", slog.LevelInfo, "gossip: a member cannot be reached", []string{"Failed to send", "Failed fallback", "Push/Pull with", "failed to receive", "Failed to receive", "Failed to read", "Failed to push"}},

	// Not memberlist's: see delegate.
	stateKept:    {"state_kept", slog.LevelWarn, "gossip: this node's state is not sent", nil},
	stateRefused: {"state_refused", slog.LevelWarn, "gossip: another node's state is not taken", nil},
}

// classify returns problemEnd for lines that say nothing to an operator.
func classify(line []byte) problem {
	if bytes.HasPrefix(line, []byte("[DEBUG]")) || bytes.Contains(line, []byte("Updating address for")) {
		return problemEnd
	}
	for p := other + 1; p < problemEnd; p++ {
		for _, text := range kinds[p].texts {
			if bytes.Contains(line, []byte(text)) {
				return p
			}
		}
	}
	return other
}

const (
	logEvery  = 10 * time.Second // one line per kind
	maxDetail = 300              // bytes of memberlist's own text
)

// logs turns memberlist's lines into counted kinds, each logged once per logEvery
// with the number left out since.
type logs struct {
	log     *slog.Logger
	metrics *metrics
	quiet   atomic.Bool // while closing: what fails then is no news

	mu   sync.Mutex // guards all below
	last [problemEnd]time.Time
	left [problemEnd]int
}

// Write is called by a log.Logger, once per line.
func (l *logs) Write(line []byte) (int, error) {
	if p := classify(line); p != problemEnd {
		l.note(p, string(bytes.TrimSpace(line[:min(len(line), maxDetail)])))
	}
	return len(line), nil
}

// note counts a problem and may log it.
func (l *logs) note(p problem, detail string) {
	if l.quiet.Load() {
		return
	}
	l.metrics.problems[p].Inc()
	if left, now := l.due(p); now {
		l.log.LogAttrs(context.Background(), kinds[p].level, kinds[p].message, //nolint:sloglint // the messages are the constants in kinds
			slog.String("detail", detail), slog.Int("suppressed", left))
	}
}

func (l *logs) due(p problem) (left int, now bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.last[p].IsZero() && time.Since(l.last[p]) < logEvery {
		l.left[p]++
		return 0, false
	}
	left, l.left[p], l.last[p] = l.left[p], 0, time.Now()
	return left, true
}
