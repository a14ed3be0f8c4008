package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"penstock/scraper"
	"penstock/vllm"
)

func checkEngine(ctx context.Context, cfg Config, p Probes) []Check {
	if cfg.Engine == "" {
		return nil
	}
	models, err := ask(ctx, p.Models)
	if err != nil {
		return []Check{fail("reachable", err, fmt.Sprintf("start vLLM at %s, or set --engine; with its --api-key, --engine-api-key-file", cfg.Engine))}
	}
	version, err := ask(ctx, p.Version)
	checks := []Check{judgeModels(cfg, models), ok("version", "vLLM %s", version)}
	if err != nil {
		checks[1] = Check{Name: "version", Status: Warn, Evidence: oneLine(err.Error()), Fix: "give --engine vLLM itself, not a proxy before it"}
	}
	page, err := ask(ctx, p.Page)
	return append(checks, judgePage(cfg, page, err)...)
}

func judgeModels(cfg Config, models []vllm.Model) Check {
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = fmt.Sprintf("%s (%d tokens)", m.ID, m.MaxModelLen)
	}
	return judge("reachable", len(models) > 0, Fail, fmt.Sprintf("%s serves %s", cfg.Engine, strings.Join(names, ", ")), "load a model: the list is empty")
}

// judgePage is whether the scheduler will see the engine's water level.
func judgePage(cfg Config, r scraper.Report, err error) []Check {
	if err != nil {
		c := fail("metrics", err, fmt.Sprintf("%s/metrics must answer with vLLM's metrics", cfg.Engine))
		if e := (*scraper.Error)(nil); errors.As(err, &e) && e.Problem == scraper.Missing {
			c.Fix = "start vLLM without --disable-log-stats: with it the page lacks every number that admission needs"
		}
		return []Check{c}
	}
	understood := fmt.Sprintf("names found: %d, engines: %d, KV tokens: %d, bytes: %d", len(r.Found), r.Ranks, r.KVTokens, r.Bytes)
	if len(r.Renamed) > 0 {
		understood += "; older names: " + strings.Join(r.Renamed, " ")
	}
	limits := ok("engine limits", "its own queue limits refused nothing so far")
	switch {
	case r.Refused < 0:
		limits.Evidence = "the page counts no refusals by the engine's own queue limits"
	case r.Refused > 0:
		limits = Check{Name: limits.Name, Status: Warn, Evidence: fmt.Sprintf("its own queue limits refused %d requests", r.Refused), Fix: "raise vLLM's --max-num-queued-reqs and --max-num-queued-tokens: a refused request runs again elsewhere, and penstock keeps the queue"}
	}
	return []Check{
		judge("metrics", len(r.Missing) == 0, Warn, understood, "not there: "+strings.Join(r.Missing, " ")+". Admission works with wider margins; a newer vLLM has them"),
		judge("metrics filter", r.Filtered > 0, Warn, fmt.Sprintf("bytes of a page of only the names read: %d", r.Filtered), "this version serves the whole page 20 times a second: let nothing between penstock and the engine drop ?name[]=, or use a newer vLLM"),
		limits,
	}
}
