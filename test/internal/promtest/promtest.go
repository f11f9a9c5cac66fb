// Package promtest runs a real Prometheus, which scrapes servers under test and evaluates rules. It
// listens on loopback.
package promtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
)

// Period is the time between two scrapes, and between two evaluations of the rules.
const Period = time.Second

// Target is one server that Prometheus scrapes. Its certificate is that of the job.
type Target struct{ Job, Pod, Address string }

// Config describes a server.
type Config struct {
	// Program is the binary, and Rules the folder with the rules.
	Program, Rules string
	// Address is the free address to listen on.
	Address string
	// Files are the client certificate for the targets, and their authorities.
	Files   identity.Files
	Targets []Target
}

// Server is a running Prometheus.
type Server struct{ address, log string }

// Start starts a server. It ends with the test.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	dir := t.TempDir()
	p := &Server{address: cfg.Address, log: filepath.Join(dir, "prometheus.log")}
	jobs := map[string]map[string]any{}
	var scrapes []map[string]any
	for _, target := range cfg.Targets {
		job := jobs[target.Job]
		if job == nil {
			job = map[string]any{
				"job_name": target.Job, "scheme": "https",
				"tls_config": map[string]any{"ca_file": cfg.Files.CAFile, "cert_file": cfg.Files.CertFile, "key_file": cfg.Files.KeyFile, "server_name": target.Job},
			}
			jobs[target.Job] = job
			scrapes = append(scrapes, job)
		}
		static, _ := job["static_configs"].([]map[string]any)
		job["static_configs"] = append(static, map[string]any{
			"targets": []string{target.Address}, "labels": map[string]string{"namespace": "trivet-system", "pod": target.Pod},
		})
	}
	rules, err := filepath.Abs(filepath.Join(cfg.Rules, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := yaml.Marshal(map[string]any{
		"global": map[string]any{
			"scrape_interval": Period.String(), "scrape_timeout": Period.String(), "evaluation_interval": Period.String(),
		},
		"rule_files": []string{rules}, "scrape_configs": scrapes,
	})
	path := filepath.Join(dir, "prometheus.yaml")
	if err == nil {
		err = os.WriteFile(path, config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	process, err := childprocess.Start(childprocess.Config{
		Path: cfg.Program, Log: p.log, Dir: dir, // without the files of its page
		Args: []string{
			"--config.file=" + path, "--storage.tsdb.path=" + filepath.Join(dir, "tsdb"),
			"--web.listen-address=" + p.address, "--rules.alert.resend-delay=1s",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	return p
}

// URL is where the server listens.
func (p *Server) URL() string { return "http://" + p.address }

// Ready returns an error until the server has loaded the rules.
func (p *Server) Ready(ctx context.Context) error {
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		} `json:"groups"`
	}
	if err := p.ask(ctx, "/api/v1/rules", nil, &rules); err != nil {
		log, _ := os.ReadFile(p.log)
		return fmt.Errorf("%w\n%s", err, log)
	}
	count := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if count++; rule.Health != "ok" {
				return fmt.Errorf("rule %s: %s %s", rule.Name, rule.Health, rule.LastError)
			}
		}
	}
	if count == 0 {
		return fmt.Errorf("prometheus has no rule")
	}
	return nil
}

// Series is one result of a query, with the times of its samples.
type Series struct {
	Labels map[string]string
	Times  []time.Time
	Last   float64
}

// Between returns the series of an expression at each evaluation from one time to another.
func (p *Server) Between(ctx context.Context, expression string, from, to time.Time) ([]Series, error) {
	var answer struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
			Values [][2]any          `json:"values"`
		} `json:"result"`
	}
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	err := p.ask(ctx, "/api/v1/query_range", url.Values{
		"query": {expression}, "start": {seconds(from)}, "end": {seconds(to)}, "step": {strconv.FormatFloat(Period.Seconds(), 'f', -1, 64)},
	}, &answer)
	if err != nil {
		return nil, err
	}
	var all []Series
	for _, result := range answer.Result {
		s := Series{Labels: result.Metric}
		for _, value := range result.Values {
			at, _ := value[0].(float64)
			s.Times = append(s.Times, time.UnixMilli(int64(at*1000)))
			text, _ := value[1].(string)
			if s.Last, err = strconv.ParseFloat(text, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", expression, err)
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// Now returns the series of an expression at this moment.
func (p *Server) Now(ctx context.Context, expression string) ([]Series, error) {
	at := time.Now()
	return p.Between(ctx, expression, at, at)
}

// Firing returns the alerts that fired at an evaluation between two times.
func (p *Server) Firing(ctx context.Context, from, to time.Time) ([]Series, error) {
	return p.Between(ctx, `ALERTS{alertstate="firing"}`, from, to)
}

func (p *Server) ask(ctx context.Context, path string, form url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL()+path, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if form == nil {
		request.Method, request.Body = http.MethodGet, nil
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s answers %s: %s", path, response.Status, text)
	}
	return json.Unmarshal(answer.Data, into)
}
