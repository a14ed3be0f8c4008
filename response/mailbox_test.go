package response

import (
	"bytes"
	"testing"
)

func TestMailboxNames(t *testing.T) {
	for _, c := range []struct{ reply, want string }{
		{Mailbox("penstock", "4f", 0), "penstock:gw:4f"},
		{Mailbox("a:mail:b", "4f", 12), "a:mail:b:gw:4f"},
		{"4f", ""},
		{"penstock:mail:4f", ""},
		{"penstock:mail::0", ""},
		{"", ""},
	} {
		if got := IncarnationKey(c.reply); got != c.want {
			t.Errorf("IncarnationKey(%q) = %q, want %q", c.reply, got, c.want)
		}
	}
	if got, want := Mailbox("penstock", "4f", 3), "penstock:mail:4f:3"; got != want {
		t.Errorf("Mailbox = %q, want %q", got, want)
	}
}

func TestOrigin(t *testing.T) {
	event := func(id, attempt string, seq uint64, k Kind) []byte {
		return Append(nil, &Event{ID: id, Attempt: attempt, Seq: seq, Kind: k, Payload: []byte("xyz")})
	}
	one := Origin(event("a", "b", 1, First))
	if one == nil || !bytes.Equal(one, Origin(event("a", "b", 1<<40, Done))) {
		t.Error("two events of one attempt have different origins")
	}
	for _, other := range [][]byte{event("a", "c", 1, First), event("b", "b", 1, First), event("ab", "", 1, First), event("", "ab", 1, First)} {
		if bytes.Equal(one, Origin(other)) {
			t.Errorf("another attempt's event %q has the origin %q too", other, one)
		}
	}
	for _, bad := range [][]byte{nil, {Version}, {Version, 0, 1, 0, 0}, {9, 1, 1, 0, 0}, {Version, 1, 1, 5, 'a'}, {Version, 1, 0x80}} {
		if got := Origin(bad); got != nil {
			t.Errorf("Origin(%v) = %q, want nil", bad, got)
		}
	}
	e := event("a", "b", 7, Chunk)
	if n := testing.AllocsPerRun(100, func() { Origin(e) }); n != 0 {
		t.Errorf("Origin allocates %v times, want 0", n)
	}
}
