package devcluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/certs"
)

// probe requests health endpoints of a server. It keeps no connection open.
type probe struct {
	client *http.Client
}

func newProbe(ca *authority, pair certs.KeyPair) (*probe, error) {
	config, err := clientTLS(ca, pair)
	if err != nil {
		return nil, err
	}
	return &probe{client: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
	}}, nil
}

// get returns nil for 200 OK, else an error with the response.
func (p *probe) get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("probe %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("probe %s: %s: %s", url, response.Status, strings.Join(failing(string(body)), "; "))
	}
	return nil
}

// failing returns the lines of a /readyz response that begin with "[-]", which are failed checks.
// Without such lines it returns the whole response.
func failing(body string) []string {
	var lines []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	if len(lines) == 0 {
		return []string{strings.TrimSpace(body)}
	}
	return lines
}
