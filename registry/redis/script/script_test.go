package script

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/lane"
	"penstock/quota"
)

func TestSources(t *testing.T) {
	all, err := Sources(7, 9)
	if err != nil {
		t.Fatal(err)
	}
	for name := range parts {
		if !strings.Contains(all[name], "local MAILBOX = 7\n") || !strings.Contains(all[name], "local TOTAL_BYTES = 9\n") {
			t.Errorf("%s lacks its bounds", name)
		}
	}
	if len(all) != len(parts) {
		t.Errorf("%d scripts, want %d", len(all), len(parts))
	}
}

// TestLane: keys of any bytes come back, and have ids of their own.
func TestLane(t *testing.T) {
	ids := map[string]lane.Key{}
	for _, k := range []lane.Key{
		{},
		{Tier: "a", Type: "b", Model: "c", Pool: "d", Tenant: "e"},
		{Tier: "ab", Model: "c", Pool: "d", Tenant: "e"},
		{Tenant: "\xff\x00 \n\""},
		{Tenant: strings.Repeat("x", MaxKey)},
	} {
		id, key, err := Lane(k)
		if err != nil {
			t.Fatalf("%+v: %v", k, err)
		}
		if other, taken := ids[id]; taken || len(id) != 22 {
			t.Errorf("%+v has the id %q of %+v, want 22 characters of its own", k, id, other)
		}
		ids[id] = k
		if got, err := ParseLane("3 " + key); err != nil || got.Key != k || got.Width != 3 {
			t.Errorf("%+v came back as %+v, %v", k, got, err)
		}
	}
	if _, _, err := Lane(lane.Key{Tenant: strings.Repeat("x", MaxKey+1)}); err == nil || !strings.Contains(err.Error(), "4097 bytes, at most 4096") {
		t.Errorf("a longer key: %v", err)
	}
	for _, entry := range []string{"", "3", "x {}", "3 {", "{}"} {
		if got, err := ParseLane(entry); err == nil {
			t.Errorf("ParseLane(%q) = %+v, want an error", entry, got)
		}
	}
}

// TestLimits: a bucket's name says what is counted and how, not by whom it is named.
func TestLimits(t *testing.T) {
	l := quota.Limit{Scope: "tenant", Bucket: "b", Amount: 5, Per: time.Minute}
	windowed, requests, sliced, scoped := l, l, l, l
	windowed.Window, requests.Unit, sliced.Own, sliced.Slice, scoped.Scope = true, quota.Requests, 2, "s", "key"
	args := Limits([]any{"first"}, []quota.Limit{l, windowed, requests, sliced, scoped, l})
	if len(args) != 1+6*7 || args[0] != "first" {
		t.Fatalf("%d arguments, want 7 for each limit behind those given", len(args))
	}
	bucket := func(i int) any { return args[1+7*i] }
	if bucket(0) != bucket(3) || bucket(0) != bucket(5) {
		t.Error("the same limit has several buckets")
	}
	for i := 1; i < 5; i++ {
		if i != 3 && bucket(i) == bucket(0) {
			t.Errorf("limit %d shares a bucket with one that counts otherwise", i)
		}
	}
	if diff := cmp.Diff([]any{"t", int64(5), int64(60_000), "l"}, args[2:6]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if args[7] != "" || args[1+7*3+6] == "" || args[1+7*1+4] != "w" || args[1+7*2+1] != "r" {
		t.Errorf("arguments %v, want a slice, a window and requests where they are asked for", args)
	}
}

func TestAnswer(t *testing.T) {
	gone := errors.New("gone")
	if _, err := Read(nil, gone, 1); err != gone { //nolint:errorlint // as it is
		t.Errorf("a failed call: %v", err)
	}
	for _, bad := range []any{nil, "text", []any{}} {
		if _, err := Read(bad, nil, 1); err == nil {
			t.Errorf("%v was taken for a row", bad)
		}
	}
	a, err := Read([]any{"ok", int64(3), "2.5", "1e300"}, nil, 4)
	if err != nil {
		t.Fatal(err)
	}
	if a.Text(0) != "ok" || a.Text(1) != "3" || a.Int(1) != 3 || a.Float(2) != 2.5 || a.Millis(2) != 2500*time.Microsecond || a.Millis(3) != 1e12*time.Millisecond || a.Err() != nil || a.Len() != 4 {
		t.Errorf("%+v was read otherwise", a)
	}
	if a.Int(0); a.Err() == nil {
		t.Error("a word was taken for a number")
	}
	if a, _ = Read([]any{nil}, nil, 1); a.Text(0) != "" || a.Err() == nil {
		t.Error("nothing was taken for text")
	}
}

func TestVerdict(t *testing.T) {
	row := []any{"ok", int64(0), int64(0), int64(0), int64(0), int64(0), int64(1), int64(2), "1500", "10", "20", "30", "40"}
	want := quota.Verdict{Refused: true, Tripped: 1, Wait: 1500 * time.Millisecond}
	want.Rooms[0] = quota.Room{Remaining: 10, Reset: 20 * time.Millisecond}
	want.Rooms[1] = quota.Room{Remaining: 30, Reset: 40 * time.Millisecond}
	a, err := Read(row, nil, 7)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, a.Verdict(2)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(quota.Verdict{}, a.Verdict(3)); diff != "" {
		t.Errorf("of a shorter answer, -want +got:\n%s", diff)
	}
}
