package doctor

import (
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	checks := []Check{
		{Group: "Redis", Name: "version", Status: OK, Evidence: "Redis 7.0.15"},
		{Group: "Redis", Name: "role", Status: Fail, Evidence: "slave", Fix: "one\ntwo"},
		{Group: "Host", Name: "clock", Status: Warn, Evidence: "1s", Fix: "one\ntwo"},
	}
	want := `Redis
  OK    version         Redis 7.0.15
  FAIL  role            slave
        fix: one
        fix: two
Host
  WARN  clock           1s
        fix: as for role
1 ok, 1 warnings, 1 failed
`
	var b strings.Builder
	if err := Write(&b, checks, false); err != nil || b.String() != want {
		t.Errorf("Write = %v\n%s\nwant\n%s", err, b.String(), want)
	}
	b.Reset()
	if err := Write(&b, checks, true); err != nil || !strings.Contains(b.String(), "\x1b[31mFAIL\x1b[0m  role") {
		t.Errorf("Write with colours = %v\n%q", err, b.String())
	}
}

// TestSetup: the user's names are in every line, as one word each.
func TestSetup(t *testing.T) {
	s := NewSetup(Config{Topic: "a-b_1", Group: "it's; rm *"})
	want := []string{
		"mqadmin updateTopic -c DefaultCluster -t a-b_1 -r 1 -w 1 -a +message.type=LITE,+lite.topic.expiration=60",
		`mqadmin updateSubGroup -c DefaultCluster -g 'it'\''s; rm *' -o true -r 10000 --attributes +lite.bind.topic=a-b_1,+lite.sub.client.max.event.cnt=1000000,+lite.sub.client.quota=10000`,
	}
	for i, line := range want {
		if s.MQAdmin[i] != line {
			t.Errorf("line %d = %s\nwant %s", i, s.MQAdmin[i], line)
		}
		if !strings.Contains(s.Text(), line) {
			t.Errorf("the text lacks line %d", i)
		}
	}
	if !strings.Contains(s.Text(), "maxmemory-policy noeviction\n") {
		t.Errorf("the text lacks Redis's policy:\n%s", s.Text())
	}
}
