package simengine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConfig has steps of exactly 10 ms and one byte per token.
func testConfig() Config {
	c := DefaultConfig()
	c.BytesPerToken = 1
	c.Engine.Base = 10 * time.Millisecond
	c.Engine.PerPrefillToken, c.Engine.PerSeq, c.Engine.PerKVToken = 0, 0, 0
	c.Engine.MaxModelLen = 1024
	return c
}

// bubble runs fn beside a running server, in fake time and without a network.
func bubble(t *testing.T, cfg Config, fn func(t *testing.T, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- s.Run(ctx) }()
		fn(t, s)
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// reply is one answer and how long it took.
type reply struct {
	*httptest.ResponseRecorder
	took time.Duration
}

func post(ctx context.Context, s *Server, path, body string) reply {
	start := time.Now()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	s.Handler().ServeHTTP(w, r)
	return reply{w, time.Since(start)}
}

// answered is what the tests look at in an answer.
type answered struct {
	ID      string
	Choices []struct {
		Index        int
		Text         string
		Message      struct{ Content string }
		FinishReason string `json:"finish_reason"`
	}
	Usage struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	}
	Data []struct{ Embedding json.RawMessage }
}

func decode(t *testing.T, r reply) answered {
	t.Helper()
	if r.Code != http.StatusOK {
		t.Fatalf("status %d: %s", r.Code, r.Body)
	}
	var a answered
	if err := json.Unmarshal(r.Body.Bytes(), &a); err != nil {
		t.Fatalf("%v in %s", err, r.Body)
	}
	return a
}

func TestAnswerTakesOneStepPerToken(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, s *Server) {
		for _, stream := range []bool{false, true} {
			r := post(t.Context(), s, "/v1/completions", fmt.Sprintf(`{"prompt":"hello","max_tokens":12,"ignore_eos":true,"stream":%v}`, stream))
			if r.Code != http.StatusOK || r.took != 120*time.Millisecond {
				t.Errorf("stream %v: status %d after %v, want 200 after 120ms", stream, r.Code, r.took)
			}
		}
	})
}

func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for _, c := range []struct {
		name, path, body string
		prompt, output   int
		reason           string
	}{
		{"completions default", "/v1/completions", `{"prompt":"hello","ignore_eos":true}`, 5, 16, "length"},
		{"chat default is the context", "/v1/chat/completions", `{"ignore_eos":true,"messages":[{"role":"user","content":"` + long + `"}]}`, 1018, 6, "length"},
		{"clamped to the context", "/v1/completions", `{"prompt":"` + long + `","max_tokens":500,"ignore_eos":true}`, 1000, 24, "length"},
		{"max_completion_tokens wins", "/v1/chat/completions", `{"ignore_eos":true,"max_tokens":9,"max_completion_tokens":3,"messages":[{"role":"user","content":"hello"}]}`, 23, 3, "length"},
		{"content parts", "/v1/chat/completions", `{"ignore_eos":true,"max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"hel"},{"type":"text","text":"lo"}]}]}`, 23, 1, "length"},
		{"n", "/v1/completions", `{"prompt":"hello","n":3,"max_tokens":2,"ignore_eos":true}`, 5, 6, "length"},
		{"prompts", "/v1/completions", `{"prompt":["one","three"],"n":2,"max_tokens":2,"ignore_eos":true}`, 8, 8, "length"},
		{"token ids", "/v1/completions", `{"prompt":[1,2,3,4],"max_tokens":2,"ignore_eos":true}`, 4, 2, "length"},
		{"lists of ids", "/v1/completions", `{"prompt":[[1,2],[3,4,5]],"max_tokens":2,"ignore_eos":true}`, 5, 4, "length"},
		{"min_tokens", "/v1/completions", `{"prompt":"hello","min_tokens":900,"max_tokens":1000,"temperature":0}`, 5, 900, "stop"},
		{"a number in a string", "/v1/completions", `{"prompt":"hello","max_tokens":"3","ignore_eos":true}`, 5, 3, "length"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(t *testing.T, s *Server) {
				a := decode(t, post(t.Context(), s, c.path, c.body))
				if a.Usage.Prompt != c.prompt || a.Usage.Output != c.output {
					t.Errorf("usage %+v, want %d prompt and %d output tokens", a.Usage, c.prompt, c.output)
				}
				for i, choice := range a.Choices {
					if choice.Index != i || choice.FinishReason != c.reason {
						t.Errorf("choice %d is %+v, want finish reason %q", i, choice, c.reason)
					}
				}
				if got := len(a.Choices[0].Text + a.Choices[0].Message.Content); got*len(a.Choices) != c.output {
					t.Errorf("%d bytes of text in each of %d choices, want one per output token", got, len(a.Choices))
				}
			})
		})
	}
}
