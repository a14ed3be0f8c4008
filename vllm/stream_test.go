package vllm

import (
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStreamReplays(t *testing.T) {
	tests := []struct {
		name    string
		fixture string
		inject  bool
		options string // of the client
		want    string // shown bytes
		usage   Usage
	}{
		{
			name: "nothing injected, nothing known", fixture: "chat-stream",
			want: fixtureBody(t, "chat-stream"), usage: Usage{Output: 12},
		},
		{
			name: "client asked for the final usage, before the probe", fixture: "chat-stream-usage",
			options: `{"include_usage":true}`,
			want:    fixtureBody(t, "chat-stream-usage"), usage: Usage{Prompt: 23, Output: 12, Known: true},
		},
		{
			name: "injected, all of it removed", fixture: "chat-stream-usage-continuous", inject: true,
			want:  without(t, "chat-stream-usage-continuous", true),
			usage: Usage{Prompt: 23, Output: 12, Known: true},
		},
		{
			name: "injected, final usage kept", fixture: "chat-stream-usage-continuous", inject: true,
			options: `{"include_usage":true}`,
			want:    without(t, "chat-stream-usage-continuous", false),
			usage:   Usage{Prompt: 23, Output: 12, Known: true},
		},
		{
			name: "client asked for both", fixture: "chat-stream-usage-continuous", inject: true,
			options: `{"include_usage":true,"continuous_usage_stats":true}`,
			want:    fixtureBody(t, "chat-stream-usage-continuous"),
			usage:   Usage{Prompt: 23, Output: 12, Known: true},
		},
		{
			name: "completions", fixture: "completions-stream-usage-continuous", inject: true,
			want:  without(t, "completions-stream-usage-continuous", true),
			usage: Usage{Prompt: 5, Output: 12, Known: true},
		},
		{
			name: "two choices, chunks counted until the final usage", fixture: "completions-n2-stream",
			options: `{"include_usage":true}`,
			want:    fixtureBody(t, "completions-n2-stream"), usage: Usage{Prompt: 5, Output: 8, Known: true},
		},
	}
	for _, piece := range []int{1 << 20, 7} {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				c := connect(t, serve(t, replay(fixture(t, tt.fixture), piece)).url)
				if tt.inject {
					c.usage.Store(usageAccepted)
				}
				req := chat
				if tt.options != "" {
					req.Body = []byte(`{"model":"tiny","stream":true,"stream_options":` + tt.options + `}`)
				}
				s, err := c.Stream(within(t), req)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				text, usage, err := shown(s)
				if !errors.Is(err, io.EOF) {
					t.Errorf("stream ended with %v, want io.EOF", err)
				}
				if diff := cmp.Diff(tt.want, text); diff != "" {
					t.Errorf("shown bytes (-want +got):\n%s", diff)
				}
				if usage != tt.usage {
					t.Errorf("usage = %+v, want %+v", usage, tt.usage)
				}
			})
		}
	}
}
