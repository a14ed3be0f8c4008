package vllm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"

	"penstock/reason"
)

// ProbeUsage asks the engine once, with a streamed completion of one token,
// whether it accepts stream_options with include_usage and continuous_usage_stats,
// and remembers the answer. Until then nothing is injected. An engine that refuses
// the request (a 4xx, as of an embedding model) is never asked again and gets no
// injection; on any other error the answer stays open and the caller may try
// again. The agent calls it at start, before it consumes.
func (c *Client) ProbeUsage(ctx context.Context, model string) error {
	if c.usage.Load() != usageUnknown {
		return nil
	}
	name, err := json.Marshal(model)
	if err != nil {
		return c.broken(ctx, "/v1/completions", reason.EngineRefused, err)
	}
	body := []byte(`{"model":` + string(name) + `,"prompt":"a","max_tokens":1,"stream":true,"stream_options":` + usageOptions + `}`)
	req := Request{Path: "/v1/completions", Body: body, Attempt: "probe-" + rand.Text(), Stream: true}
	s, err := c.stream(ctx, req, body, asked{})
	if err == nil {
		defer s.Close()
		answer := usageRefused
		for err == nil {
			var chunk Chunk
			if chunk, err = s.Next(); chunk.Usage.Known {
				answer = usageAccepted
			}
		}
		if errors.Is(err, io.EOF) {
			c.usage.CompareAndSwap(usageUnknown, answer)
			return nil
		}
	}
	if e := (*Error)(nil); errors.As(err, &e) && e.Reason == reason.EngineRefused {
		c.usage.CompareAndSwap(usageUnknown, usageRefused)
		return nil
	}
	return err
}
