package mirroring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// auditPolicy makes kube-apiserver log every write of a slice with the slice.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: RequestResponse
    verbs: [create, update, patch, delete, deletecollection]
    resources: [{group: discovery.k8s.io, resources: [endpointslices]}]
  - level: None
`

// write is one write request for a slice and its outcome.
type write struct {
	at              time.Time
	namespace, name string
	verb            string
	code            int
	byTest          bool
	// changed is false for an update that stored nothing new.
	changed bool
}

// auditLog reads what a kube-apiserver writes down. Its methods are safe for concurrent use.
type auditLog struct {
	path string

	mu       sync.Mutex // guards the following fields
	offset   int64
	rest     []byte // a line that is still being written
	all      []write
	versions map[string]string // resourceVersion of each slice, by namespace and name
}

// auditEvent is the part of an audit.k8s.io/v1 Event that is read.
type auditEvent struct {
	Verb           string
	UserAgent      string
	StageTimestamp time.Time
	ObjectRef      struct{ Namespace, Name string }
	ResponseStatus struct{ Code int }
	ResponseObject struct {
		Metadata struct{ Name, ResourceVersion string }
	}
}

// in returns the writes in a namespace since an earlier time.
func (l *auditLog) in(namespace string, since time.Time) ([]write, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.read(); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var found []write
	for _, w := range l.all {
		if w.namespace == namespace && !w.at.Before(since) {
			found = append(found, w)
		}
	}
	return found, nil
}

// read takes in what is new. The caller holds mu.
func (l *auditLog) read() error {
	file, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer file.Close()
	added, err := io.ReadAll(io.NewSectionReader(file, l.offset, 1<<40))
	if err != nil {
		return err
	}
	l.offset += int64(len(added))
	l.rest = append(l.rest, added...)
	for {
		line, rest, complete := bytes.Cut(l.rest, []byte("\n"))
		if !complete {
			return nil
		}
		l.rest = rest
		var event auditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return err
		}
		l.take(event)
	}
}

func (l *auditLog) take(event auditEvent) {
	w := write{
		at: event.StageTimestamp, namespace: event.ObjectRef.Namespace, name: event.ObjectRef.Name,
		verb: event.Verb, code: event.ResponseStatus.Code, byTest: strings.HasPrefix(event.UserAgent, testAgent),
	}
	if w.name == "" {
		w.name = event.ResponseObject.Metadata.Name
	}
	w.changed = w.code < http.StatusMultipleChoices
	if version := event.ResponseObject.Metadata.ResourceVersion; w.changed && version != "" {
		key := w.namespace + "/" + w.name
		w.changed = l.versions[key] != version
		l.versions[key] = version
	}
	l.all = append(l.all, w)
}

// summary counts what the controller wrote, by verb. Refused writes are named and not counted,
// because retries depend on time.
func summary(writes []write) string {
	counts, refused := map[string]int{}, map[string]bool{}
	for _, w := range writes {
		switch {
		case w.byTest:
		case w.verb == "delete" && w.code == http.StatusNotFound: // the cache of a controller is late by chance
		case w.code >= http.StatusMultipleChoices:
			refused[fmt.Sprintf("refused: %s %d", w.verb, w.code)] = true
		case !w.changed:
			counts["update without a change"]++
		case w.verb == "patch":
			counts["update"]++
		default:
			counts[w.verb]++
		}
	}
	var words []string
	for _, verb := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %d", verb, counts[verb]))
	}
	return strings.Join(append(words, slices.Sorted(maps.Keys(refused))...), ", ")
}
