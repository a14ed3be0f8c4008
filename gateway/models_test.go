package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestModels(t *testing.T) {
	s := newStage(t, nil).serve()
	resp, err := http.Get(s.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := fmt.Sprintf(`{"object":"list","data":[{"id":"q","object":"model","created":%d,"owned_by":"penstock","max_model_len":4096}]}`, s.g.started.Unix())
	if got := readAll(t, resp.Body); got != want {
		t.Errorf("models = %s, want %s", got, want)
	}
	if health, err := http.Get(s.url + "/health"); err != nil || health.StatusCode != 200 {
		t.Errorf("/health = %v, %v, want 200", health, err)
	} else {
		health.Body.Close()
	}
}

func TestModelsOfATenant(t *testing.T) {
	s := newStage(t, func(_ *Config, d *Deps) { d.Policy = parsePolicy(t, "tenants: {default: {models: [else]}}") }).serve()
	r, err := http.DefaultClient.Get(s.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if list := readAll(t, r.Body); strings.Contains(list, `"id":"q"`) {
		t.Errorf("models %s, want none", list)
	}
}
