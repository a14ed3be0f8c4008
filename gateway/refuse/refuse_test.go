package refuse

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/reason"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file anew")

// TestRefusals writes every refusal as a status and as a stream's end.
func TestRefusals(t *testing.T) {
	table := Table{Saturated: 429}
	var out strings.Builder
	for _, why := range Reasons() {
		f := &Refusal{Reason: why, Model: "q", Ahead: 37, Wait: 12 * time.Second}
		if rules[why].Retry > 0 {
			f.Retry = 11500 * time.Millisecond
		}
		rec := httptest.NewRecorder()
		table.Write(rec, f)
		fmt.Fprintf(&out, "== %s\n%d\n", why, rec.Code)
		if err := rec.Result().Header.WriteSubset(&out, map[string]bool{"Content-Type": true}); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%s\n%s", rec.Body, table.Event(f))
		text := strings.ToLower(rec.Body.String())
		if strings.Contains(text, "billing") || strings.Contains(text, "will reset at") {
			t.Errorf("%s: %q has words on which an SDK gives up", why, text)
		}
		var body struct {
			Error struct{ Message, Type, Code string }
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
			t.Fatalf("error body %q: %v", rec.Body, err)
		}
		message, kind, code := body.Error.Message, body.Error.Type, body.Error.Code
		if message == "" || kind == "" || code == "" || rec.Code < 400 || rec.Code == 500 {
			t.Errorf("%s: status %d, message %q, type %q, code %q", why, rec.Code, message, kind, code)
		}
		if again := strings.Contains(message, "try again in 12 seconds"); again != (rec.Header().Get("Retry-After") == "12") {
			t.Errorf("%s: text %q and Retry-After %q differ", why, message, rec.Header().Get("Retry-After"))
		}
	}
	got := strings.ReplaceAll(out.String(), "\r\n", "\n")
	const golden = "testdata/refusals.golden"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -rewrite accepts it:\n%s", golden, diff)
	}
}

func TestSaturatedStatus(t *testing.T) {
	table := Table{Saturated: 503}
	for _, why := range []reason.Reason{reason.Overloaded, reason.LaneFull} {
		if r := table.Rule(&Refusal{Reason: why}); r.Status != 503 || r.Kind != unavailable || r.Code != "server_is_overloaded" {
			t.Errorf("%s = %+v, want 503 %s server_is_overloaded", why, r, unavailable)
		}
	}
}

func TestRetryAfterIsInRange(t *testing.T) {
	table := Table{Saturated: 429}
	for in, want := range map[time.Duration]time.Duration{0: time.Second, time.Millisecond: time.Second, 4001 * time.Millisecond: 5 * time.Second, 2 * time.Hour: time.Minute} {
		if got := table.Rule(&Refusal{Reason: reason.Overloaded, Retry: in}).Retry; got != want {
			t.Errorf("Retry-After for %s = %s, want %s", in, got, want)
		}
	}
}

func TestSooner(t *testing.T) {
	at := func(why reason.Reason, after time.Duration) *Refusal { return &Refusal{Reason: why, Retry: after} }
	for _, c := range []struct {
		name string
		f, g *Refusal
		want bool
	}{
		{"busy, where there is no coming back", at(reason.Overloaded, time.Second), nil, true},
		{"neither", at(reason.UnknownModel, 0), nil, false},
		{"a shorter time", at(reason.Overloaded, time.Second), at(reason.LaneFull, 9*time.Second), true},
		{"a longer one", at(reason.Overloaded, 9*time.Second), at(reason.LaneFull, time.Second), false},
		{"never, where there is a time", at(reason.UnknownModel, 0), at(reason.Overloaded, time.Minute), false},
		{"a time, where there was none", at(reason.NoEngine, 0), at(reason.UnknownModel, 0), true},
		{"not to be retried", at(reason.BudgetSpent, time.Second), at(reason.Overloaded, time.Minute), false},
		{"where the other is not to be retried", at(reason.Overloaded, time.Second), &Refusal{Reason: reason.RateLimited, NoRetry: true}, true},
	} {
		if got := (Table{Saturated: 429}).Sooner(c.f, c.g); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
