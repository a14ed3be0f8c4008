package rocketmq

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"penstock/lane"
	"penstock/queue"
)

// The wire form of a message: the client's bytes are the broker's message body, all
// else is user properties, at most maxProperties bytes with their names. Texts are
// percent-encoded, so that any byte travels as ASCII; times are unix milliseconds of
// the fleet's clock, durations milliseconds, flags "1". A property that is missing
// is the zero value. A reader takes the version it was built for and the one before;
// of an unknown one it reads what it can and leaves the rest to the handler.
const (
	pVersion  = "version"
	pID       = "id"
	pTier     = "tier"
	pType     = "type"
	pModel    = "model"
	pPool     = "pool"
	pTenant   = "tenant"
	pShard    = "shard"
	pPath     = "path"
	pOpened   = "opened"
	pDeadline = "deadline"
	pTTFT     = "slo_ttft"
	pNamed    = "slo_ttft_named"
	pPatient  = "patient"
	pTPOT     = "slo_tpot"
	pPrompt   = "prompt_tokens"
	pSafe     = "safe_prompt"
	pExpected = "expected_out"
	pMax      = "max_tokens"
	pSeqs     = "sequences"
	pStream   = "stream"
	pTrace    = "traceparent"
	pReply    = "reply"
	pEmpty    = "empty" // the broker refuses an empty body: one byte stands for it
)

// maxTraceparent is more than W3C's version 00 takes (55) and bounds what a client
// sends; a longer one is left out.
const maxTraceparent = 128

var errMalformed = errors.New("malformed message")

// encode is the wire form of m; ahead is what the fleet's clock is ahead of ours.
func encode(m *queue.Message, ahead time.Duration) (map[string]string, []byte) {
	p := make(map[string]string, 24)
	text := func(name, s string) {
		if s != "" {
			p[name] = url.QueryEscape(s)
		}
	}
	number := func(name string, n int64) {
		if n != 0 {
			p[name] = strconv.FormatInt(n, 10)
		}
	}
	flag := func(name string, set bool) {
		if set {
			p[name] = "1"
		}
	}
	moment := func(name string, t time.Time) {
		if !t.IsZero() {
			number(name, t.Add(ahead).UnixMilli())
		}
	}
	number(pVersion, int64(m.Version))
	text(pID, m.ID)
	text(pTier, m.Lane.Tier)
	text(pType, m.Lane.Type)
	text(pModel, m.Lane.Model)
	text(pPool, m.Lane.Pool)
	text(pTenant, m.Lane.Tenant)
	number(pShard, int64(m.Shard))
	text(pPath, m.Path)
	moment(pOpened, m.Opened)
	moment(pDeadline, m.Deadline)
	number(pTTFT, m.SLOTTFT.Milliseconds())
	flag(pNamed, m.SLOTTFTNamed)
	flag(pPatient, m.Patient)
	number(pTPOT, m.SLOTPOT.Milliseconds())
	number(pPrompt, int64(m.PromptTokens))
	number(pSafe, int64(m.SafePrompt))
	number(pExpected, int64(m.ExpectedOut))
	number(pMax, int64(m.MaxTokens))
	number(pSeqs, int64(m.Sequences))
	flag(pStream, m.Stream)
	if len(m.Traceparent) <= maxTraceparent {
		text(pTrace, m.Traceparent)
	}
	text(pReply, m.Reply)
	body := m.Body
	if len(body) == 0 {
		flag(pEmpty, true)
		body = []byte{'-'}
	}
	return p, body
}

// decode reads the wire form. It fails with errMalformed where the id is missing or
// a field of a known version cannot be read. Properties it does not know (the broker
// adds its own) are ignored.
func decode(p map[string]string, body []byte, ahead time.Duration) (*queue.Message, error) {
	d := decoder{properties: p}
	m := &queue.Message{
		Version: int(d.number(pVersion)),
		ID:      d.text(pID),
		Lane:    lane.Key{Tier: d.text(pTier), Type: d.text(pType), Model: d.text(pModel), Pool: d.text(pPool), Tenant: d.text(pTenant)},
		Shard:   int(d.number(pShard)),
		Path:    d.text(pPath),
		Opened:  d.moment(pOpened, ahead), Deadline: d.moment(pDeadline, ahead),
		SLOTTFT: d.duration(pTTFT), SLOTTFTNamed: p[pNamed] == "1", Patient: p[pPatient] == "1", SLOTPOT: d.duration(pTPOT),
		PromptTokens: int(d.number(pPrompt)), SafePrompt: int(d.number(pSafe)), ExpectedOut: int(d.number(pExpected)),
		MaxTokens: int(d.number(pMax)), Sequences: int(d.number(pSeqs)), Stream: p[pStream] == "1",
		Traceparent: d.text(pTrace), Reply: d.text(pReply), Body: body,
	}
	if p[pEmpty] == "1" {
		m.Body = nil
	}
	if m.ID == "" {
		d.bad = pID
	}
	if d.bad == pID || d.bad == pVersion || d.bad != "" && m.Version <= queue.Version {
		return nil, fmt.Errorf("%w: property %s", errMalformed, d.bad)
	}
	return m, nil
}

// decoder remembers the first property that could not be read.
type decoder struct {
	properties map[string]string
	bad        string
}

func (d *decoder) note(name string, err error) {
	if err != nil && d.bad == "" {
		d.bad = name
	}
}

func (d *decoder) text(name string) string {
	s, err := url.QueryUnescape(d.properties[name])
	d.note(name, err)
	return s
}

func (d *decoder) number(name string) int64 {
	s := d.properties[name]
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	d.note(name, err)
	if err == nil && (n < 0 || n > 1<<53) {
		d.note(name, errMalformed)
	}
	return n
}

func (d *decoder) duration(name string) time.Duration {
	n := d.number(name)
	if n > int64(24*time.Hour/time.Millisecond) {
		d.note(name, errMalformed)
	}
	return time.Duration(n) * time.Millisecond
}

func (d *decoder) moment(name string, ahead time.Duration) time.Time {
	n := d.number(name)
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMilli(n).Add(-ahead).UTC()
}
