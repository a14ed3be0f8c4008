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
				want := c.output / len(a.Choices)
				if c.reason == "stop" {
					want-- // the token that stops has no text
				}
				if got := len(a.Choices[0].Text + a.Choices[0].Message.Content); got != want {
					t.Errorf("%d bytes of text, want %d: one per output token", got, want)
				}
			})
		})
	}
}

func TestTextIsDecidedBySeedAndPrompt(t *testing.T) {
	ask := func(t *testing.T, seed uint64, body string) (text string) {
		cfg := testConfig()
		cfg.Seed = seed
		bubble(t, cfg, func(t *testing.T, s *Server) {
			post(t.Context(), s, "/v1/completions", `{"prompt":"before","max_tokens":1}`) // shifts the order of arrival
			text = decode(t, post(t.Context(), s, "/v1/completions", body)).Choices[0].Text
			again := decode(t, post(t.Context(), s, "/v1/completions", body)).Choices[0].Text
			if same := text == again; same == strings.Contains(body, "hot") {
				t.Errorf("%s twice: %q and %q", body, text, again)
			}
		})
		return text
	}
	a := ask(t, 1, `{"prompt":"a","temperature":0,"max_tokens":50}`)
	if b := ask(t, 2, `{"prompt":"a","temperature":0,"max_tokens":50}`); a == b {
		t.Errorf("another server's seed gives the same %q", b)
	}
	if b := ask(t, 1, `{"prompt":"b","temperature":0,"max_tokens":50}`); a == b {
		t.Errorf("another prompt gives the same %q", b)
	}
	if b := ask(t, 1, `{"prompt":"a","temperature":0,"max_tokens":50}`); a != b {
		t.Errorf("the same request gives %q and %q", a, b)
	}
	ask(t, 1, `{"prompt":"a","seed":7,"max_tokens":50}`)
	ask(t, 1, `{"prompt":"hot","max_tokens":50,"ignore_eos":true}`)
}

func TestLengthsAreGeometric(t *testing.T) {
	s, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	sum, short := 0, 0
	const n = 20_000
	for i := range uint64(n) {
		l := s.naturalLength(mix(i))
		if l < 1 {
			t.Fatalf("length %d", l)
		}
		sum += l
		if l <= 68 { // the median of mean 99
			short++
		}
	}
	if mean := float64(sum) / n; mean < 97 || mean > 101 {
		t.Errorf("mean %.1f, want 99", mean)
	}
	if half := float64(short) / n; half < 0.48 || half > 0.52 {
		t.Errorf("%.3f are at most 68 tokens long, want half", half)
	}
}

func TestDisconnectAbortsAtTheEndOfTheStep(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			bubble(t, testConfig(), func(t *testing.T, s *Server) {
				ctx, hangUp := context.WithCancel(t.Context())
				gone := make(chan reply)
				go func() {
					gone <- post(ctx, s, "/v1/completions", fmt.Sprintf(`{"prompt":"hello","n":2,"max_tokens":500,"ignore_eos":true,"stream":%v}`, stream))
				}()
				time.Sleep(35 * time.Millisecond)
				hangUp()
				<-gone
				if st := s.Stats(); st.Running != 2 || s.InFlight() != 2 {
					t.Errorf("within the step: %+v, want both still running", st)
				}
				time.Sleep(5*time.Millisecond + 1)
				if st := s.Stats(); st.Running != 0 || st.KV != 0 || st.Aborted != 2 || s.InFlight() != 0 {
					t.Errorf("at its end: %+v, want none", st)
				}
			})
		})
	}
}

func TestFrozenEngineIsSilent(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(s *Server, on bool)
	}{
		{"frozen", (*Server).Freeze},
		{"asleep", func(s *Server, on bool) {
			if on {
				s.Sleep(1)
			} else {
				s.Sleep(0)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, testConfig(), func(t *testing.T, s *Server) {
				over := make(chan reply)
				go func() {
					over <- post(t.Context(), s, "/v1/completions", `{"prompt":"hello","max_tokens":5,"ignore_eos":true,"stream":true}`)
				}()
				time.Sleep(25 * time.Millisecond)
				c.set(s, true)
				before := s.Stats()
				time.Sleep(time.Hour)
				if got := s.Stats(); got != before {
					t.Errorf("stats moved from %+v to %+v", before, got)
				}
				c.set(s, false)
				r := <-over
				if n := strings.Count(r.Body.String(), `"text":"`); n != 5 || r.Code != http.StatusOK {
					t.Errorf("status %d, %d tokens, want 200 and 5", r.Code, n)
				}
			})
		})
	}
}

func TestStopFailsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(testConfig())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- s.Run(ctx) }()
		plain, stream := make(chan reply), make(chan reply)
		go func() {
			plain <- post(t.Context(), s, "/v1/completions", `{"prompt":"a","max_tokens":500,"ignore_eos":true}`)
		}()
		go func() {
			stream <- post(t.Context(), s, "/v1/completions", `{"prompt":"a","max_tokens":500,"ignore_eos":true,"stream":true}`)
		}()
		time.Sleep(45 * time.Millisecond)
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		if r := <-plain; r.Code != http.StatusInternalServerError {
			t.Errorf("plain answer has status %d, want 500", r.Code)
		}
		if r := <-stream; r.Code != http.StatusOK || !strings.HasSuffix(r.Body.String(), `"code": 500}}`+"\n\ndata: [DONE]\n\n") {
			t.Errorf("stream has status %d and ends\n%s", r.Code, r.Body)
		}
	})
}

func TestEmbeddings(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, s *Server) {
		a := decode(t, post(t.Context(), s, "/v1/embeddings", `{"input":["hello","world!"]}`))
		if len(a.Data) != 2 || a.Usage.Prompt != 11 || a.Usage.Output != 0 {
			t.Fatalf("%+v, want 2 vectors of 11 tokens", a)
		}
		var v []float64
		if err := json.Unmarshal(a.Data[0].Embedding, &v); err != nil || len(v) != dimensions {
			t.Errorf("%d numbers, %v; want %d", len(v), err, dimensions)
		}
		b := decode(t, post(t.Context(), s, "/v1/embeddings", `{"input":"hello","encoding_format":"base64"}`))
		var coded []byte
		if err := json.Unmarshal(b.Data[0].Embedding, &coded); err != nil || len(coded) != 4*dimensions {
			t.Errorf("%d bytes, %v; want %d", len(coded), err, 4*dimensions)
		}
	})
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, path, body string
		status           int
		message          string
	}{
		{"null means default", "/v1/completions", `{"prompt":"x","max_tokens":null}`, 200, ""},
		{"max_tokens 0", "/v1/completions", `{"prompt":"x","max_tokens":0}`, 400, "max_tokens must be at least 1, got 0."},
		{"n times prompts", "/v1/completions", `{"prompt":["x","y"],"n":10000}`, 400, "n must be at most 16384"},
		{"embedding may fill it", "/v1/embeddings", `{"input":"` + strings.Repeat("x", 1024) + `"}`, 200, ""},
		{"body too large", "/v1/completions", `{"prompt":"` + strings.Repeat("x", 5000) + `"}`, 413, "Too Large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig()
			cfg.MaxBody = 4096
			bubble(t, cfg, func(t *testing.T, s *Server) {
				r := post(t.Context(), s, c.path, c.body)
				if r.Code != c.status || !strings.Contains(r.Body.String(), c.message) {
					t.Errorf("status %d: %s\nwant %d with %q", r.Code, r.Body, c.status, c.message)
				}
			})
		})
	}
}

func TestPageCounts(t *testing.T) {
	bubble(t, testConfig(), func(t *testing.T, s *Server) {
		post(t.Context(), s, "/v1/completions", `{"prompt":"hello","max_tokens":12,"ignore_eos":true}`)
		page := string(s.Page())
		for _, want := range []string{
			`vllm:prompt_tokens_total{engine="0",model_name="sim"} 5.0`,
			`vllm:generation_tokens_total{engine="0",model_name="sim"} 12.0`,
			`vllm:iteration_tokens_total_count{engine="0",model_name="sim"} 12.0`,
			`vllm:iteration_tokens_total_sum{engine="0",model_name="sim"} 17.0`,
			`vllm:inter_token_latency_seconds_count{engine="0",model_name="sim"} 11.0`,
			`vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="sim"} 11.0`,
			`vllm:time_to_first_token_seconds_sum{engine="0",model_name="sim"} 0.01`,
			`vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"} 1.0`,
			`vllm:request_success_total{engine="0",finished_reason="abort",model_name="sim"} 0.0`,
			`vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="sim"} 1.0`,
			`vllm:engine_sleep_state{engine="0",model_name="sim",sleep_state="awake"} 1.0`,
		} {
			if !strings.Contains(page, want+"\n") {
				t.Errorf("page lacks %s", want)
			}
		}
		s.Sleep(1)
		if got := string(s.Page("vllm:engine_sleep_state")); !strings.Contains(got, `"weights_offloaded"} 1.0`) || !strings.Contains(got, `"awake"} 0.0`) {
			t.Errorf("asleep: %s", got)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"Model":         func(c *Config) { c.Model = "" },
		"BytesPerToken": func(c *Config) { c.BytesPerToken = 0 },
		"MeanOutput":    func(c *Config) { c.MeanOutput = 0.5 },
		"MaxBody":       func(c *Config) { c.MaxBody = 0 },
		"Blocks":        func(c *Config) { c.Engine.Blocks = 0 },
	} {
		c := DefaultConfig()
		edit(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("bad %s: error %v", name, err)
		}
	}
}
