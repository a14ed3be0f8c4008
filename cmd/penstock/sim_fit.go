package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"penstock/cmd/penstock/exit"
	"penstock/cmd/penstock/show"
	"penstock/scheduler"
	"penstock/scraper"
	"penstock/sim/fit"
	"penstock/vllm"
)

// fitOptions are the command's flags.
type fitOptions struct {
	engine, key, model, output string
	fit                        fit.Config
	known                      fit.Known
}

func newSimFit() *cobra.Command {
	o := fitOptions{fit: fit.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "fit",
		Short: "Measure a live engine's step times and print them as a profile for sim replay",
		Long: `sim fit keeps an engine busy for some minutes with batches of answers and with prompts that come in beside them,
and finds from the times of their tokens how long a step of the engine takes:

  step + per_prefill_token x prompt tokens + per_prefill_context x thousands of tokens before each of them
  + per_sequence x sequences that decode + per_kv_token x KV tokens held

It prints a profile that sim replay --profile takes. Comments in it say how far the fit is off on points that it was
not made from, and what the engine did not tell. The engine must do nothing else meanwhile: it is refused while
requests run, and the sweep ends when others come, unless --force. Ctrl-C stops at once and leaves nothing running.

Exit codes: 1 the engine is in use, or the sweep failed; 2 usage; 4 the engine is not reachable.`,
		Example: `  penstock sim fit --engine http://127.0.0.1:8000 > my-gpu.yaml
  penstock sim replay --profile my-gpu.yaml
  penstock sim fit --engine http://127.0.0.1:8000 --max-num-seqs 128 --max-num-batched-tokens 8192 -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.engine, "engine", "", "URL of the vLLM engine")
	f.StringVar(&o.key, "engine-api-key-file", "", "file with the API key that the engine asks for")
	f.StringVar(&o.model, "model", "", "model to ask for; default: the first that the engine serves")
	f.StringVarP(&o.output, "output", "o", "yaml", "yaml, a profile; or json, with all that was measured")
	f.DurationVar(&o.fit.Within, "within", o.fit.Within, "no measurement begins later than this")
	f.BoolVar(&o.fit.Force, "force", false, "measure also beside other work")
	f.IntVar(&o.fit.KVTokens, "kv-tokens", 0, "what the KV cache holds, where the engine does not tell")
	f.IntVar(&o.fit.MaxModelLen, "max-model-len", 0, "the engine's --max-model-len, where it does not tell")
	f.IntVar(&o.known.MaxSeqs, "max-num-seqs", 0, "the engine's --max-num-seqs, which it never tells; 0 = what can be seen")
	f.IntVar(&o.known.MaxBatchedTokens, "max-num-batched-tokens", 0, "the engine's --max-num-batched-tokens, which it never tells; 0 = what can be seen")
	return cmd
}

func (o *fitOptions) run(ctx context.Context, out, progress io.Writer) error {
	if o.output != "yaml" && o.output != "json" {
		return exit.Usagef("-o %q: want yaml or json", o.output)
	}
	if o.engine == "" {
		return exit.Usagef("--engine is missing: give the engine's URL, such as --engine %s", defaultEngine)
	}
	cfg := vllm.DefaultConfig()
	cfg.URL = o.engine
	if o.key != "" {
		key, err := os.ReadFile(o.key)
		if err != nil {
			return exit.Usagef("--engine-api-key-file: %w", err)
		}
		cfg.APIKey = strings.TrimSpace(string(key))
	}
	client, err := vllm.New(cfg)
	if err != nil {
		return exit.Usagef("--engine: %w", err)
	}
	defer client.Close()
	version, err := o.look(ctx, client)
	if err != nil {
		return err
	}
	if err := o.fit.Validate(); err != nil {
		return exit.Usagef("%w", err)
	}
	o.fit.MaxSeqs = o.known.MaxSeqs
	o.fit.Seed = rand.Uint64()
	result, err := o.sweep(ctx, client, progress)
	if err != nil {
		return err
	}
	profile, notes := result.Profile(&o.fit, o.known)
	if o.output == "json" {
		return show.JSON(out, map[string]any{
			"apiVersion": "penstock/v1", "engine": o.engine, "model": o.model, "version": version, "profile": profile, "notes": notes,
			"error": result.Errors(), "first_token_seconds": result.FirstToken, "points": result.Rows, "skipped": result.Skipped, "took": result.Took.String(),
		})
	}
	return o.write(out, &result, profile, notes, version)
}

// look asks the engine what it says of itself and fills in what is not given.
func (o *fitOptions) look(ctx context.Context, client *vllm.Client) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, doctorWithin)
	defer cancel()
	models, err := client.Models(ctx)
	if err != nil {
		return "", exit.With(exit.Unreachable, fmt.Errorf("no engine at %s: %w", o.engine, err))
	}
	if o.model == "" && len(models) > 0 {
		o.model = models[0].ID
	}
	found := false
	for _, m := range models {
		if m.ID == o.model {
			found = true
			if o.fit.MaxModelLen == 0 {
				o.fit.MaxModelLen = m.MaxModelLen
			}
		}
	}
	if !found {
		return "", exit.Usagef("--model %q: the engine at %s serves %v", o.model, o.engine, models)
	}
	if o.fit.MaxModelLen == 0 {
		return "", exit.Usagef("the engine at %s does not tell its longest context: give --max-model-len", o.engine)
	}
	page := scraper.DefaultConfig()
	page.URL = o.engine
	report, err := scraper.Inspect(ctx, page)
	if err != nil {
		return "", exit.With(exit.Unreachable, fmt.Errorf("the metrics page of %s cannot be used: %w", o.engine, err))
	}
	if o.fit.KVTokens == 0 {
		o.fit.KVTokens = report.KVTokens
	}
	if o.fit.KVTokens == 0 {
		return "", exit.Usagef("the engine at %s does not tell how many tokens its KV cache holds: give --kv-tokens (in its log: GPU KV cache size)", o.engine)
	}
	if report.Ranks > 1 {
		return "", exit.Usagef("the engine at %s has %d data-parallel ranks, whose steps are not one another's: fit a server with one", o.engine, report.Ranks)
	}
	o.known.BlockSize = blockSize(ctx, o.engine)
	version, _ = client.Version(ctx) // only told
	return version, nil
}

// blockSize is what the metrics page says of it; 0 = nothing.
func blockSize(ctx context.Context, engine string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, engine+"/metrics", nil)
	if err != nil {
		return 0
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return 0
	}
	for _, m := range families["vllm:cache_config_info"].GetMetric() {
		for _, l := range m.GetLabel() {
			if n, err := strconv.Atoi(l.GetValue()); err == nil && l.GetName() == "block_size" && n > 0 {
				return n
			}
		}
	}
	return 0
}

// sweep runs the measurement beside a scraper, which is asked for the gauges.
func (o *fitOptions) sweep(ctx context.Context, client *vllm.Client, progress io.Writer) (result fit.Result, err error) {
	var last atomic.Pointer[scheduler.Sample]
	var bad atomic.Pointer[error]
	page := scraper.DefaultConfig()
	page.URL = o.engine
	gauges, err := scraper.New(page, prometheus.NewRegistry(), slog.New(slog.DiscardHandler),
		func(s scheduler.Sample) { last.Store(&s); bad.Store(nil) },
		func(_ time.Time, err error) { bad.Store(&err) })
	if err != nil {
		return result, err
	}
	engine := fit.Engine{
		Generate: func(ctx context.Context, prompt []int, output int, token func(int)) error {
			return generate(ctx, client, o.model, prompt, output, token)
		},
		Gauges: func(ctx context.Context) (running, waiting int, err error) {
			asked := time.Now()
			for tick := time.NewTicker(10 * time.Millisecond); ; {
				if s := last.Load(); s != nil && s.Asked.After(asked) {
					return s.Running, s.Waiting, nil
				}
				if bad := bad.Load(); bad != nil && time.Since(asked) > 3*time.Second {
					return 0, 0, *bad
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return 0, 0, ctx.Err()
				}
			}
		},
	}
	scraping, stop := context.WithCancel(context.WithoutCancel(ctx)) // it is asked also after Ctrl-C, whether all has ended
	var group errgroup.Group
	group.Go(func() error { return gauges.Run(scraping) })
	said := time.Now()
	result, err = fit.Run(ctx, o.fit, engine, func(done, all int, left time.Duration) {
		if now := time.Now(); done == all || now.Sub(said) > 5*time.Second {
			said = now
			_, _ = fmt.Fprintf(progress, "%d of %d points, about %v left\n", done, all, max(left, 0).Round(time.Second))
		}
	})
	stop()
	if errors.Is(err, fit.ErrBusy) {
		err = fmt.Errorf("%w. Run it while nobody uses the engine, or give --force", err)
	}
	return result, errors.Join(err, group.Wait())
}

// generate runs one answer to its length.
func generate(ctx context.Context, client *vllm.Client, name string, prompt []int, output int, token func(int)) error {
	body := fmt.Appendf(nil, `{"model":%q,"max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true,"prompt":[`, name, output)
	for i, id := range prompt {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendInt(body, int64(id), 10)
	}
	body = append(body, "]}"...)
	stream, err := client.Stream(ctx, vllm.Request{Path: "/v1/completions", Body: body, Attempt: fmt.Sprintf("penstock-fit-%x", rand.Uint64()), Stream: true})
	if err != nil {
		return err
	}
	defer stream.Close()
	for told := 0; ; {
		chunk, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n := chunk.Usage.Output; n > told {
			told = n
			token(n)
		}
	}
}

// write is the profile with what is to be known of it.
func (o *fitOptions) write(w io.Writer, r *fit.Result, p fit.Profile, notes map[string]string, version string) error {
	e := r.Errors()
	percent := func(x [2]float64) string { return fmt.Sprintf("%.1f %% / %.1f %%", 100*x[0], 100*x[1]) }
	text := fmt.Sprintf(`# penstock sim fit --engine %s
# %s: model %s, vLLM %s; %d points in %v.
# |predicted - measured| / measured on points that the fit was not made from, median / nine in ten:
# %s; steps that only decode %s; with a prompt %s.
# A lone request's first token comes %.1f ms later than its steps; sim replay counts 3 ms.
`, o.engine, time.Now().UTC().Format("2006-01-02 15:04 MST"), o.model, version, len(r.Rows), r.Took.Round(time.Second),
		percent(e.All), percent(e.Decode), percent(e.Prefill), 1000*r.FirstToken)
	for _, s := range r.Skipped {
		text += "# not measured: " + s + "\n"
	}
	for _, field := range []struct {
		name  string
		value any
	}{
		{"step", p.Step},
		{"per_prefill_token", p.PerPrefillToken},
		{"per_prefill_context", p.PerPrefillContext},
		{"per_sequence", p.PerSequence},
		{"per_kv_token", p.PerKVToken},
		{"kv_tokens", p.KVTokens},
		{"block_size", p.BlockSize},
		{"max_model_len", p.MaxModelLen},
		{"max_num_seqs", p.MaxSeqs},
		{"max_num_batched_tokens", p.MaxBatchedTokens},
	} {
		text += fmt.Sprintf("%s: %v", field.name, field.value)
		if note := notes[field.name]; note != "" {
			text += "  # " + note
		}
		text += "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
