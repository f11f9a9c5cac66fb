package promtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// AwaitFiring returns how long it took until an alert fired, or an error after limit.
func (p *Server) AwaitFiring(ctx context.Context, alert string, limit time.Duration) (time.Duration, error) {
	began := time.Now()
	for time.Since(began) < limit {
		found, err := p.Now(ctx, fmt.Sprintf(`ALERTS{alertstate="firing",alertname=%q}`, alert))
		if err != nil {
			return 0, err
		}
		if len(found) > 0 {
			return time.Since(began), nil
		}
		if err := pause(ctx); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%s does not fire within %v", alert, limit)
}

// AwaitNothing returns once no alert fires or is pending, or after limit those that are.
func (p *Server) AwaitNothing(ctx context.Context, limit time.Duration) error {
	for began := time.Now(); ; {
		found, err := p.Now(ctx, "ALERTS")
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return nil
		}
		if time.Since(began) > limit {
			for _, s := range found {
				err = errors.Join(err, fmt.Errorf("after %v there still is %v", limit, s.Labels))
			}
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// Expectation is what may fire between two times.
type Expectation struct {
	// Alert is that of the fault, Also are further ones with a reason each.
	Alert string
	Also  map[string]string
	// RealTime has the shipped `for` of alerts that compare with times which are not divided. One
	// of them counts only if its condition held for that long.
	RealTime map[string]time.Duration
}

// Judge returns which other alerts fired between two times, and an error for each that may not.
func (p *Server) Judge(ctx context.Context, from, to time.Time, expected Expectation) (others []string, err error) {
	fired, err := p.Firing(ctx, from, to)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, s := range fired {
		name := s.Labels["alertname"]
		if name == expected.Alert {
			continue
		}
		if least := expected.RealTime[name]; least > 0 {
			held, err := p.held(ctx, name, from.Add(-least), to)
			if err != nil {
				return nil, err
			}
			if held < least {
				continue
			}
		}
		seen[name] = true
		if _, allowed := expected.Also[name]; !allowed {
			err = errors.Join(err, fmt.Errorf("%v fired from %v to %v after the begin", s.Labels,
				s.Times[0].Sub(from).Round(time.Second), s.Times[len(s.Times)-1].Sub(from).Round(time.Second)))
		}
	}
	return slices.Sorted(maps.Keys(seen)), err
}

// held returns for how long an alert was pending or fired at most, between two times.
func (p *Server) held(ctx context.Context, alert string, from, to time.Time) (time.Duration, error) {
	found, err := p.Between(ctx, fmt.Sprintf("ALERTS{alertname=%q}", alert), from, to)
	if err != nil {
		return 0, err
	}
	var first, last time.Time
	for _, s := range found {
		if first.IsZero() || s.Times[0].Before(first) {
			first = s.Times[0]
		}
		if end := s.Times[len(s.Times)-1]; end.After(last) {
			last = end
		}
	}
	return last.Sub(first), nil
}

// pause waits for half a period.
func pause(ctx context.Context) error {
	timer := time.NewTimer(Period / 2)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
