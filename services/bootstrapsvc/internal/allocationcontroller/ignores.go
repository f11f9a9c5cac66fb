package allocationcontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// ignoreOf returns the mark of a finding, nil if it has none.
func (c *findingCache) ignoreOf(name string) *allocation.Ignore {
	if ignore, ok := c.ignores[name]; ok {
		return &ignore
	}
	return nil
}

// setIgnore marks a current finding.
func (c *findingCache) setIgnore(ignore allocation.Ignore) {
	c.ignores[ignore.Finding] = ignore
	delete(c.unignored, ignore.Finding)
	c.changeIgnore(ignore.Finding)
}

// dropIgnore takes the mark of a finding away, here and at the next write to the store.
func (c *findingCache) dropIgnore(name string) {
	delete(c.ignores, name)
	c.unignored[name] = struct{}{}
	c.changeIgnore(name)
}

// replaceIgnores makes the marks those of the store.
func (c *findingCache) replaceIgnores(stored []allocation.Ignore) {
	before := c.ignores
	c.ignores = map[string]allocation.Ignore{}
	for _, ignore := range stored {
		if c.unignored.has(ignore.Finding) {
			continue
		}
		c.ignores[ignore.Finding] = ignore
		if c.current[ignore.Finding] == nil {
			c.dropIgnore(ignore.Finding)
		}
	}
	for name := range before {
		c.changeIgnore(name)
	}
	for name := range c.ignores {
		c.changeIgnore(name)
	}
}

func (c *findingCache) changeIgnore(name string) {
	if known, ok := c.current[name]; ok {
		finding := *known // a snapshot may have the old one
		finding.Ignore, finding.Generation = c.ignoreOf(name), c.nextGeneration()
		c.current[name] = &finding
	}
}

func (c *findingCache) expireIgnores(now time.Time) {
	for name, ignore := range c.ignores {
		if ignore.Expired(now) {
			c.dropIgnore(name)
		}
	}
}

// nextIgnoreExpiry returns when the next mark ends by its time, zero if none does.
func (c *findingCache) nextIgnoreExpiry() (next time.Time) {
	for _, ignore := range c.ignores {
		if !ignore.Expires.IsZero() && (next.IsZero() || ignore.Expires.Before(next)) {
			next = ignore.Expires
		}
	}
	return next
}

// forgotten returns the findings that ended and are not kept.
func (c *findingCache) forgotten(left []allocation.Finding) []allocation.Finding {
	kept := set{}
	for _, finding := range c.ended {
		kept[finding.Name] = struct{}{}
	}
	return slices.DeleteFunc(left, func(f allocation.Finding) bool { return kept.has(f.Name) || c.current[f.Name] != nil })
}

// ignore marks a finding or takes its mark away; see Controller.Ignore. The mark is stored before
// it counts.
func (r *reconciler) ignore(ctx context.Context, request IgnoreRequest) (allocation.Finding, error) {
	if err := r.watches.listErr(); err != nil {
		return allocation.Finding{}, err
	}
	finding, ok := r.findings.current[request.Finding]
	switch {
	case !ok:
		return allocation.Finding{}, fmt.Errorf("%w: %s", ErrFindingNotFound, request.Finding)
	case request.Etag != "" && request.Etag != finding.Etag():
		return allocation.Finding{}, fmt.Errorf("%s: %w", request.Finding, ErrEtagMismatch)
	}
	wanted := request.mark(time.Now().UTC(), finding.Ignore)
	if request.ValidateOnly || wanted == finding.Ignore {
		checked := *finding
		checked.Ignore = wanted
		return checked, nil
	}
	var written []allocation.Ignore
	var deleted []string
	if wanted == nil {
		deleted = append(deleted, finding.Name)
	} else {
		written = append(written, *wanted)
	}
	if err := r.RepairStore.WriteIgnores(ctx, written, deleted); err != nil {
		r.ignoresOutdated = true // the mark may be stored, and only the answer lost
		return allocation.Finding{}, err
	}
	if wanted == nil {
		r.findings.dropIgnore(finding.Name)
		delete(r.findings.unignored, finding.Name)
	} else {
		r.findings.setIgnore(*wanted)
	}
	r.Logger.InfoContext(ctx, "finding ignored", "finding", finding.Name, "ignored", wanted != nil, "caller", request.Caller.User)
	r.publish()
	return *r.findings.current[request.Finding], nil
}

// mark returns the mark that is wanted: nil for none, and the present one if it is as requested.
func (request IgnoreRequest) mark(now time.Time, present *allocation.Ignore) *allocation.Ignore {
	if request.TTL != nil && *request.TTL <= 0 {
		return nil
	}
	wanted := &allocation.Ignore{Finding: request.Finding, Caller: request.Caller, Created: now, Comment: request.Comment}
	if request.TTL != nil {
		wanted.Expires = now.Add(*request.TTL)
	}
	if present != nil && present.Expires.IsZero() && wanted.Expires.IsZero() && present.Comment == wanted.Comment &&
		present.Caller.User == wanted.Caller.User {
		return present
	}
	return wanted
}

// storeIgnores deletes the stored marks of findings that are not ignored any more. If the answer to
// a write was lost, it first reads the marks again.
func (r *reconciler) storeIgnores(ctx context.Context) error {
	if r.ignoresOutdated {
		stored, _, err := r.RepairStore.Ignores(ctx)
		if err != nil {
			return err
		}
		r.findings.replaceIgnores(stored)
		r.ignoresOutdated = false
		r.publish()
	}
	if len(r.findings.unignored) == 0 {
		return nil
	}
	if err := r.RepairStore.WriteIgnores(ctx, nil, slices.Sorted(maps.Keys(r.findings.unignored))); err != nil {
		return err
	}
	clear(r.findings.unignored)
	return nil
}
