package proxy

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // go:linkname

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// sdkLogger is the client library's logger. It is not exported and would write
// files below $HOME; there is no other way to it. A test holds that it is still
// the one in use.
//
//go:linkname sdkLogger github.com/apache/rocketmq-clients/golang/v5.sugarBaseLogger
var sdkLogger *zap.SugaredLogger

const (
	// saidEvery is how often one line of the library's code is logged again.
	saidEvery = 10 * time.Second
	maxText   = 500
)

// sdkCore carries what the library logs at warn and above to slog, as warnings: it
// logs at error what it goes on to repeat. Each place in its code is heard once per
// saidEvery; the places are the bound.
type sdkCore struct {
	log atomic.Pointer[slog.Logger]

	mu   sync.Mutex // guards said and is what orders the library's own goroutines (see DESIGN.md)
	said map[string]said
}

type said struct {
	at   time.Time
	more int
}

var sdkLog = &sdkCore{said: map[string]said{}}

func (c *sdkCore) Enabled(l zapcore.Level) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l >= zapcore.WarnLevel
}

func (c *sdkCore) With([]zapcore.Field) zapcore.Core { return c }
func (c *sdkCore) Sync() error                       { return nil }

func (c *sdkCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *sdkCore) Write(e zapcore.Entry, _ []zapcore.Field) error {
	log := c.log.Load()
	at := e.Caller.TrimmedPath()
	c.mu.Lock()
	s := c.said[at]
	quiet := log == nil || time.Since(s.at) < saidEvery
	if quiet {
		s.more++
		c.said[at] = s
	} else {
		c.said[at] = said{at: time.Now()}
	}
	c.mu.Unlock()
	if !quiet {
		log.Warn("rocketmq client", "text", e.Message[:min(len(e.Message), maxText)], "at", at, "repeated", s.more)
	}
	return nil
}
