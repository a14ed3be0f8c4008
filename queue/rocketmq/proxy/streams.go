package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// receive is one long poll.
type receive struct {
	grpc.ClientStream
	session *session
	cancel  context.CancelFunc
	got     bool // a message: its handler gives the slot back
	bad     bool
	over    bool
	ended   bool // after cut, the library has been told
	cut     bool // by us; guarded by session.mu
}

func (r *receive) SendMsg(m any) error {
	if req, ok := m.(*pb.ReceiveMessageRequest); ok {
		req.BatchSize = 1
	}
	return r.ClientStream.SendMsg(m)
}

func (r *receive) RecvMsg(m any) error {
	err := r.ClientStream.RecvMsg(m)
	if err != nil {
		if r.finish(err) { // for the library it has ended as one without a message
			r.ended = true
			m.(*pb.ReceiveMessageResponse).Content = &pb.ReceiveMessageResponse_Status{Status: &pb.Status{Code: pb.Code_OK}}
			return nil
		}
		if r.ended {
			return io.EOF
		}
		return mended(err)
	}
	r.session.heard.Store(time.Now().UnixNano())
	reply := m.(*pb.ReceiveMessageResponse)
	if reply.GetMessage() != nil {
		r.got = true
	}
	switch st := reply.GetStatus(); st.GetCode() {
	case pb.Code_CODE_UNSPECIFIED, pb.Code_OK:
	case pb.Code_MESSAGE_NOT_FOUND:
		// The library does not count the end of a poll that it takes for failed, and
		// then waits for it when it stops.
		st.Code = pb.Code_OK
	default:
		r.bad = true
	}
	return nil
}

// finish does the accounts of an ended poll, once, and reports whether it was cut.
func (r *receive) finish(err error) bool {
	if r.over {
		return false
	}
	r.over = true
	r.cancel()
	r.session.mu.Lock()
	delete(r.session.polls, r)
	cut := r.cut
	r.session.mu.Unlock()
	failed := !cut && (r.bad || !errors.Is(err, io.EOF) && status.Code(err) != codes.DeadlineExceeded)
	switch {
	case failed:
		r.session.receivedBadly()
	case !r.got:
		r.session.release()
	}
	if !failed {
		r.session.fails.Store(0)
	}
	return cut
}

// telemetry is the stream the proxy knows a client by. Once settings have come it
// mends itself: the library would notice a lost one after five minutes.
type telemetry struct {
	grpc.ClientStream // replaced under mu
	session           *session
	ctx               context.Context
	open              func() (grpc.ClientStream, error)

	mu       sync.Mutex
	settings *pb.TelemetryCommand // as last sent
}

func (t *telemetry) connect() error {
	cs, err := t.open()
	if err != nil {
		return mended(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ClientStream = cs
	if t.settings != nil {
		return cs.SendMsg(t.settings)
	}
	return nil
}

// again sends the last settings once more. What fails RecvMsg mends.
func (t *telemetry) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settings != nil {
		_ = t.ClientStream.SendMsg(t.settings)
	}
}

func (t *telemetry) SendMsg(m any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c, ok := m.(*pb.TelemetryCommand); ok && c.GetSettings() != nil {
		t.settings = c
	}
	err := t.ClientStream.SendMsg(m)
	if err != nil && t.session.ready.Load() {
		return nil // RecvMsg mends the stream and sends the settings
	}
	return mended(err)
}

func (t *telemetry) RecvMsg(m any) error {
	for {
		t.mu.Lock()
		cs := t.ClientStream
		t.mu.Unlock()
		err := cs.RecvMsg(m)
		if err == nil {
			if t.session.told(m.(*pb.TelemetryCommand)) {
				return nil
			}
			continue
		}
		if !t.session.ready.Load() || t.ctx.Err() != nil {
			return mended(err)
		}
		t.session.failed.Store(time.Now().UnixNano())
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, maxPause) {
			select {
			case <-time.After(pause):
			case <-t.ctx.Done():
				return t.ctx.Err()
			}
			if t.connect() == nil {
				break
			}
		}
	}
}
