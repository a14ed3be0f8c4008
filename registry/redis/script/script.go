// Package script is the Lua that Redis runs for the record store, and what its calls are
// given and answer: lanes and limits as arguments, rows of text and numbers as answers.
package script

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock/quota"
	"penstock/registry"
)

const (
	// Version of a record's and an entry's format. Another one is an error, not guessed at.
	Version = "1"
	// EventField is the field of a mailbox's entry that holds an event, as
	// response.StreamField says.
	EventField = "e"
	// LaneIdle is how long a lane is listed after its last work.
	LaneIdle = 30 * time.Minute
	// silent is how long an owner that cannot renew goes on before it gives up by
	// itself: a finished or cancelled record is remembered, and counts are kept, as long.
	silent = 30 * time.Second
	// RecordBytes is charged in bytes for a record beside its body.
	RecordBytes = 512
	// hold is the time to live of what is touched by every use: far above the longest
	// start deadline, 10 min, and what follows it.
	hold = time.Hour
	// engineKept is how long an engine is listed after its last renewal: 10 s as live,
	// then a minute as gone.
	engineKept = 70 * time.Second
	// placesSlot is how exactly a kept place's moment is remembered, as in registry/memory.
	placesSlot = 100 * time.Millisecond
	minRetry   = time.Second
	maxRetry   = time.Minute
)

//go:embed lua/*.lua
var sources embed.FS

// parts are the files each script is made of, after base.lua and before its own.
var parts = map[string][]string{
	"open": {"door", "lanes", "quota"}, "claim": {"lanes"}, "renew": nil, "first": nil, "finish": nil, "release": nil, "cancel": nil,
	"sweep": {"lanes"}, "backlog": {"door"}, "engines": nil, "clock": nil, "lanelist": {"lanes"}, "confirm": nil, "longest": nil,
}

// Sources are all scripts by name. Their constants are the protocol's and the store's:
// the events a mailbox may hold unread, and the bodies of all requests in bytes. So two
// processes with different bounds have different scripts. A script is called without
// keys, with the prefix of all keys as its first argument.
func Sources(mailbox, totalBytes int64) (map[string]string, error) {
	head := constants(mailbox, totalBytes)
	all := make(map[string]string, len(parts))
	for name := range parts {
		text, err := source(head, name)
		if err != nil {
			return nil, err
		}
		all[name] = text
	}
	return all, nil
}

// source is the text of one script.
func source(head, name string) (string, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, part := range slices.Concat([]string{"base"}, parts[name], []string{name}) {
		text, err := sources.ReadFile("lua/" + part + ".lua")
		if err != nil {
			return "", fmt.Errorf("registry/redis: %w", err)
		}
		b.Write(text)
	}
	return b.String(), nil
}

func constants(mailbox, totalBytes int64) string {
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	head := fmt.Sprintf("local VERSION, EVENT_FIELD = '%s', '%s'\n", Version, EventField)
	for _, c := range []struct {
		name  string
		value any
	}{
		{"OWNERSHIP", ms(registry.Ownership)},
		{"KEEP", ms(registry.Keep)},
		{"MAX_TRIES", registry.MaxTries},
		{"SILENT", ms(silent)},
		{"HOLD", ms(hold)},
		{"MAILBOX", mailbox},
		{"RECORD_BYTES", RecordBytes},
		{"TOTAL_BYTES", totalBytes},
		{"LANE_IDLE", ms(LaneIdle)},
		{"WAITING", 500}, // more than an agent looks at until it asks again; 11 kB
		{"ENGINE_KEPT", ms(engineKept)},
		{"ORPHAN_WAIT", 2000},
		{"PACE_MOST", 1000},
		{"STARTS", 10},        // seconds of starts that stand in for a rate
		{"RATE_KEPT", 30_000}, // how long the last known rate serves
		{"ERROR_GAIN", 0.1},   // EWMA of the forecast's error, about the last ten starts
		{"ERROR_MOST", 2},     // an outage teaches no more than that
		{"NO_ENGINE", 5000},   // when to come back where no engine is
		{"SHOWN_GAIN", 0.05},  // EWMA of how many places are taken, about the last twenty
		{"PLACES_SHARE", 0.7}, // of the drain rate is promised
		{"PLACE_GRACE", 2000}, // how long after its moment a place can be taken
		{"SLOT_PLACES", 128},  // places by fingerprint that one slot remembers
		{"TURNS_MOST", 4096},  // lanes whose turns are remembered
		{"SLOT", ms(placesSlot)},
		{"RETRY_LEAST", ms(minRetry)},
		{"RETRY_MOST", ms(maxRetry)},
		{"QUOTA_IDLE", ms(quota.Idle)},
		{"QUOTA_BURST", ms(quota.Burst)},
		{"QUOTA_TURN", ms(quota.MaxWait)},
		{"QUOTA_DAY", ms(quota.Day)},
		{"QUOTA_SLACK", quota.Slack},
	} {
		head += fmt.Sprintf("local %s = %v\n", c.name, c.value)
	}
	return head
}
