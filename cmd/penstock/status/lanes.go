package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"penstock/cmd/penstock/show"
	penstockv1 "penstock/proto/penstock/v1"
)

// WriteLanes says what waits and runs, lane by lane, as output, text or json, has it.
func WriteLanes(w io.Writer, answer *penstockv1.LanesResponse, output string) error {
	if output == "json" {
		return writeLanesJSON(w, answer)
	}
	if problem := answer.GetProblem(); problem != "" {
		_, _ = fmt.Fprintf(w, "lanes are missing: %s\n", problem)
	}
	if len(answer.GetClasses()) == 0 && answer.GetTotal() == 0 {
		_, err := fmt.Fprintln(w, "nothing waits and nothing runs")
		return err
	}
	t := show.Table(w, "TIER", "MODEL", "BACKLOG", "TOKENS", "OLDEST", "WIDTH USED", "LIMITED BY")
	for _, l := range answer.GetClasses() {
		show.Row(t, append([]any{l.GetTier(), l.GetModel()}, waits(l)...)...)
	}
	if err := t.Flush(); err != nil || answer.GetTotal() == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = show.Table(w, "TENANT", "TIER", "TYPE", "MODEL", "POOL", "BACKLOG", "TOKENS", "OLDEST", "WIDTH USED", "LIMITED BY")
	for _, l := range answer.GetLanes() {
		tenant := cmp.Or(l.GetTenant(), "-")
		if strings.ContainsFunc(tenant, func(r rune) bool { return !unicode.IsPrint(r) }) {
			tenant = strconv.Quote(tenant)
		}
		show.Row(t, append([]any{tenant, l.GetTier(), l.GetType(), l.GetModel(), cmp.Or(l.GetPool(), "-")}, waits(l)...)...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if shown, total := len(answer.GetLanes()), int(answer.GetTotal()); shown < total {
		_, err := fmt.Fprintf(w, "%d of %d lanes; --top %d shows all\n", shown, total, total)
		return err
	}
	return nil
}

// waits are the cells of what waits.
func waits(l *penstockv1.Lane) []any {
	used := fmt.Sprint(l.GetRunningRequests())
	if l.GetWidth() > 0 {
		used += fmt.Sprintf("/%d", l.GetWidth())
	}
	return []any{l.GetBacklogRequests(), fmt.Sprintf("%.0f", l.GetBacklogTokens()), show.Ago(l.GetOldestSeconds()), used, cmp.Or(l.GetLimitedBy(), "-")}
}

func writeLanesJSON(w io.Writer, answer *penstockv1.LanesResponse) error {
	shown := map[string]any{"apiVersion": "penstock/v1", "total": answer.GetTotal(), "problem": answer.GetProblem()}
	for name, list := range map[string][]*penstockv1.Lane{"lanes": answer.GetLanes(), "classes": answer.GetClasses()} {
		rows := []json.RawMessage{}
		for _, l := range list {
			raw, err := show.Raw(l)
			if err != nil {
				return err
			}
			rows = append(rows, raw)
		}
		shown[name] = rows
	}
	return show.JSON(w, shown)
}
