package api

import (
	"fmt"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/wording"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirrorcontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// Codes of problems.
const (
	problemSyncsFailing   = "SLICE_SYNCS_FAILING"
	problemContended      = "SLICES_CONTENDED"
	problemCacheNotSynced = "CACHE_NOT_SYNCED"
	problemWatchSilent    = "WATCH_SILENT"
	problemShardBlocked   = "SHARD_BLOCKED"

	problemAddressesDropped = "ADDRESSES_DROPPED"
	problemSourcesOverlap   = "SLICE_SOURCES_OVERLAP"
)

const (
	// silentAfter is three bookmarks of kube-apiserver.
	silentAfter = 3 * time.Minute
	// blockedAfter is the time in which a term begins, with the first list of the slices.
	blockedAfter = 30 * time.Second
)

// Problems returns what is wrong with the duties of this replica, the worst first. It reads memory
// only.
func (s *Server) Problems() []*metav1.Problem {
	now := time.Now()
	health := s.cfg.Controller.Health()
	var mirrors mirrorcontroller.Health
	var problems []*metav1.Problem
	if !s.cfg.SelectorLoopOff && !s.cfg.SelectorDryRun() {
		problems = s.blockedShards(health.Shards, now, "does no work on them", "the loop that writes slices has not begun; see its state and the readiness of the replica")
	}
	if s.cfg.Mirrors != nil {
		mirrors = s.cfg.Mirrors.Health()
	}
	if s.cfg.Mirrors != nil && !s.cfg.MirrorDryRun() {
		problems = append(problems, s.blockedShards(mirrors.Shards, now, "mirrors no Endpoints in them", "the loop that mirrors Endpoints has not begun; see its state and the readiness of the replica")...)
	}
	problems = append(problems, s.failing(health.Failing, "slices")...)
	problems = append(problems, s.failing(mirrors.Failing, "mirrored slices")...)
	problems = append(problems, s.cacheProblems(now)...)
	problems = append(problems, s.contended(health.Contended, "slices", "endpointslice-controller")...)
	problems = append(problems, s.contended(mirrors.Contended, "mirrored slices", "endpointslice-mirroring-controller")...)
	if dropping := mirrors.Dropping; dropping.Count > 0 {
		problems = append(problems, s.problem(&metav1.Problem{
			Code:     problemAddressesDropped,
			Severity: metav1.Problem_SEVERITY_WARNING,
			Object:   objectOf(dropping),
			Message: fmt.Sprintf("Addresses in the Endpoints of %s are in no slice since %s; of %s: %s",
				names(dropping), wording.Time(dropping.Since), dropping.Latest, dropping.Cause),
			Next: "Set --mirroring-spill for addresses over the limit; correct the writer of invalid addresses, which trivet slices names.",
		}))
	}
	if overlapping := mirrors.BothSources; overlapping.Count > 0 {
		problems = append(problems, s.problem(&metav1.Problem{
			Code:     problemSourcesOverlap,
			Severity: metav1.Problem_SEVERITY_WARNING,
			Object:   objectOf(overlapping),
			Message: fmt.Sprintf("Slices of Pods and mirrored slices of %s exist side by side since %s, and traffic goes to the endpoints of both.",
				names(overlapping), wording.Time(overlapping.Since)),
			Next: "Delete the slices that the former selector has left, or start slicesvc with --cleanup-selectorless.",
		}))
	}
	return problems
}

// failing reports the Services whose syncs fail; of is what they write.
func (s *Server) failing(group slicecontroller.ServiceGroup, of string) []*metav1.Problem {
	if group.Count == 0 {
		return nil
	}
	return []*metav1.Problem{s.problem(&metav1.Problem{
		Code:     problemSyncsFailing,
		Severity: metav1.Problem_SEVERITY_ERROR,
		Object:   objectOf(group),
		Message: fmt.Sprintf("The %s of %s cannot be written since %s; %s failed last: %s",
			of, names(group), wording.Time(group.Since), group.Latest, group.Cause),
		Next: "Look at the error; slicesvc tries again by itself.",
	})}
}

// contended reports the Services with another writer; rival is the controller of
// kube-controller-manager that writes the same slices.
func (s *Server) contended(group slicecontroller.ServiceGroup, of, rival string) []*metav1.Problem {
	if group.Count == 0 {
		return nil
	}
	return []*metav1.Problem{s.problem(&metav1.Problem{
		Code:     problemContended,
		Severity: metav1.Problem_SEVERITY_WARNING,
		Object:   objectOf(group),
		Message: fmt.Sprintf("Another writer keeps changing the %s of %s since %s; of %s it is %q.",
			of, names(group), wording.Time(group.Since), group.Latest, group.Cause),
		Next: fmt.Sprintf("Stop the other writer. If it is kube-controller-manager, disable its %s.", rival),
	})}
}

// problem completes a problem. Its texts come from errors and objects, which may have any bytes.
func (s *Server) problem(problem *metav1.Problem) *metav1.Problem {
	problem.Service = serviceName
	if only := problem.GetObject(); only != nil {
		problem.Resource = resourceName(slicecontroller.Key{Namespace: only.GetNamespace(), Name: only.GetName()})
	} else {
		problem.Resource = "replicas/" + s.cfg.ReplicaID
	}
	problem.Message = wording.Valid(problem.GetMessage())
	return problem
}

// objectOf returns the only Service of a group, nil if there are several.
func objectOf(group slicecontroller.ServiceGroup) *metav1.ObjectReference {
	if group.Count > 1 {
		return nil
	}
	only := group.First[0]
	return &metav1.ObjectReference{ApiVersion: "v1", Kind: "Service", Namespace: only.Namespace, Name: only.Name}
}

// blockedShards reports the shards that this replica leads and on which no sync of one controller
// runs. lacks is the predicate of the sentence; cause is that of a loop that has not begun.
func (s *Server) blockedShards(held []slicecontroller.HeldShard, now time.Time, lacks, cause string) []*metav1.Problem {
	working := map[int]slicecontroller.HeldShard{}
	for _, shard := range held {
		working[shard.Shard] = shard
	}
	var blocked []string
	var since time.Time
	for _, status := range s.leadersNow().shards {
		shard, begun := working[status.Shard]
		began := status.AcquireTime
		switch {
		case !status.Here, begun && shard.Blocked == nil, !begun && now.Sub(began) < blockedAfter:
			continue
		case begun:
			began, cause = shard.Since, shard.Blocked.Error()
		}
		blocked = append(blocked, fmt.Sprint(status.Shard))
		if since.IsZero() || began.Before(since) {
			since = began
		}
	}
	if len(blocked) == 0 {
		return nil
	}
	return []*metav1.Problem{s.problem(&metav1.Problem{
		Code:     problemShardBlocked,
		Severity: metav1.Problem_SEVERITY_ERROR,
		Message: fmt.Sprintf("This replica leads shards %s and %s since %s: %s",
			wording.List(blocked, len(blocked)), lacks, wording.Time(since), cause),
		Next: "Look at the cause and at the log of the replica.",
	})}
}

// cacheProblems reports caches that are being filled, and watches that are silent.
func (s *Server) cacheProblems(now time.Time) []*metav1.Problem {
	if err := s.cfg.CheckCaches(); err != nil {
		return []*metav1.Problem{s.problem(&metav1.Problem{
			Code:     problemCacheNotSynced,
			Severity: metav1.Problem_SEVERITY_UNKNOWN,
			Message:  "This replica has not read all objects of the cluster yet: " + strings.Join(strings.Fields(err.Error()), " "),
			Next:     "Look at the connection to kube-apiserver and at the rights of the replica.",
		})}
	}
	var problems []*metav1.Problem
	for _, cache := range s.cfg.Caches() {
		if now.Sub(cache.Heard) < silentAfter {
			continue
		}
		message := fmt.Sprintf("The watch of every %s was last heard at %s, so slices may be out of date", cache.Kind, wording.Time(cache.Heard))
		if cache.Failure != nil {
			message += ": " + cache.Failure.Error()
		}
		problems = append(problems, s.problem(&metav1.Problem{
			Code:     problemWatchSilent,
			Severity: metav1.Problem_SEVERITY_UNKNOWN,
			Message:  message,
			Next:     "Look at the connection to kube-apiserver.",
		}))
	}
	return problems
}

// names counts the Services of a group and names the first ones.
func names(group slicecontroller.ServiceGroup) string {
	first := make([]string, 0, len(group.First))
	for _, key := range group.First {
		first = append(first, key.String())
	}
	if group.Count == 1 {
		return "Service " + first[0]
	}
	return fmt.Sprintf("%d Services (%s)", group.Count, wording.List(first, group.Count))
}
