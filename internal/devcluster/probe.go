package devcluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// probe asks a server whether it is well. It keeps no connection open, so
// that none outlives a start.
type probe struct {
	client *http.Client
}

func newProbe(ca *authority, pair keyPair) (*probe, error) {
	config, err := clientTLS(ca, pair)
	if err != nil {
		return nil, err
	}
	return &probe{client: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
	}}, nil
}

// get returns nil for 200 OK, else what the server answered instead.
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

// failing picks the lines of a /readyz answer that say what is missing: they
// begin with "[-]". Any other answer is returned whole.
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
