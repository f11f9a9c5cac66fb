// Package clusterstate reads what package diagnosis decides about: from kube-apiserver, from etcd,
// from the gateway, and from this machine.
//
// Every function ends with its context. It returns an error if it has no answer. A refusal that is
// itself the answer, such as a denied right, is part of the facts.
package clusterstate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/diagnosis"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/kubeaccess"
)

const (
	// The client's own limits. The checks make some hundred small requests.
	qps, burst = 50, 100
	// reviewsAtOnce limits concurrent access reviews.
	reviewsAtOnce = 8
)

// Kube reads from kube-apiserver. It is safe for concurrent use.
type Kube struct {
	// Client is a client of kube-apiserver.
	Client   kubernetes.Interface
	metadata metadata.Interface
	http     *http.Client
	server   *url.URL
}

// NewKube returns a reader with the credentials of a configuration. It calls no server.
func NewKube(config *rest.Config) (*Kube, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = qps, burst
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubeaccess.HTTPClient(config)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("kubeconfig: %w", err))
	}
	k := &Kube{http: client}
	if k.server, _, err = rest.DefaultServerUrlFor(config); err != nil {
		return nil, exit.UsageError(fmt.Errorf("kubeconfig: %w", err))
	}
	if k.Client, err = kubernetes.NewForConfigAndClient(config, client); err != nil {
		return nil, exit.UsageError(fmt.Errorf("kubeconfig: %w", err))
	}
	if k.metadata, err = metadata.NewForConfigAndClient(config, client); err != nil {
		return nil, exit.UsageError(fmt.Errorf("kubeconfig: %w", err))
	}
	return k, nil
}

// Close ends the connections that are not in use.
func (k *Kube) Close() { k.http.CloseIdleConnections() }

// Version returns the version of kube-apiserver.
func (k *Kube) Version(ctx context.Context) (diagnosis.Version, error) {
	var info apiversion.Info
	body, err := k.Client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return diagnosis.Version{}, err
	}
	if err := decodeJSON(body, &info); err != nil {
		return diagnosis.Version{}, err
	}
	major, majorErr := strconv.Atoi(info.Major)
	minor, minorErr := strconv.Atoi(strings.TrimRight(info.Minor, "+"))
	if err := errors.Join(majorErr, minorErr); err != nil {
		return diagnosis.Version{}, fmt.Errorf("version %q: %w", info.GitVersion, err)
	}
	return diagnosis.Version{Major: major, Minor: minor, Text: info.GitVersion}, nil
}

// Clock returns the clock of kube-apiserver from the Date of an answer, which has whole seconds.
func (k *Kube) Clock(ctx context.Context) (diagnosis.Clock, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.server.JoinPath("version").String(), nil)
	if err != nil {
		return diagnosis.Clock{}, err
	}
	began := time.Now()
	response, err := k.http.Do(request)
	if err != nil {
		return diagnosis.Clock{}, err
	}
	took := time.Since(began)
	_ = response.Body.Close()
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return diagnosis.Clock{}, fmt.Errorf("header Date of kube-apiserver: %w", err)
	}
	return clockOf("kube-apiserver", date.Add(500*time.Millisecond), began, took, 500*time.Millisecond), nil
}

// clockOf compares a time in an answer with the middle of the call.
func clockOf(server string, at, began time.Time, took, resolution time.Duration) diagnosis.Clock {
	return diagnosis.Clock{Server: server, Offset: at.Sub(began.Add(took / 2)), Error: took/2 + resolution}
}

// APIs returns which of the used APIs kube-apiserver serves.
func (k *Kube) APIs(ctx context.Context) ([]diagnosis.API, error) {
	var apis []diagnosis.API
	for _, used := range []struct {
		group     string
		resources []string
		optional  bool
	}{
		{group: "discovery.k8s.io/v1", resources: []string{"endpointslices"}},
		{group: "coordination.k8s.io/v1", resources: []string{"leases"}},
		{group: "authentication.k8s.io/v1", resources: []string{"tokenreviews"}},
		{group: "authorization.k8s.io/v1", resources: []string{"subjectaccessreviews"}},
		{group: "networking.k8s.io/v1", resources: []string{"ipaddresses", "servicecidrs"}, optional: true},
	} {
		var served metav1.APIResourceList
		body, err := k.Client.Discovery().RESTClient().Get().AbsPath("/apis/" + used.group).DoRaw(ctx)
		if err == nil {
			err = decodeJSON(body, &served)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		for _, resource := range used.resources {
			api := diagnosis.API{Name: used.group + " " + resource, Optional: used.optional}
			for _, r := range served.APIResources {
				api.Served = api.Served || r.Name == resource
			}
			apis = append(apis, api)
		}
	}
	return apis, nil
}

// OwnRights asks kube-apiserver for the caller's own rights.
func (k *Kube) OwnRights(ctx context.Context, rights []diagnosis.Right) []diagnosis.Right {
	return reviewEach(rights, func(right diagnosis.Right) (authorizationv1.SubjectAccessReviewStatus, error) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes(right)}}
		answer, err := k.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return authorizationv1.SubjectAccessReviewStatus{}, err
		}
		return answer.Status, nil
	})
}

// RightsOf asks kube-apiserver for the rights of a user.
func (k *Kube) RightsOf(ctx context.Context, user string, groups []string, rights []diagnosis.Right) []diagnosis.Right {
	return reviewEach(rights, func(right diagnosis.Right) (authorizationv1.SubjectAccessReviewStatus, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: append(groups, "system:authenticated"), ResourceAttributes: attributes(right),
		}}
		answer, err := k.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return authorizationv1.SubjectAccessReviewStatus{}, err
		}
		return answer.Status, nil
	})
}

func reviewEach(rights []diagnosis.Right, review func(diagnosis.Right) (authorizationv1.SubjectAccessReviewStatus, error)) []diagnosis.Right {
	decided := make([]diagnosis.Right, len(rights))
	slots := make(chan struct{}, reviewsAtOnce)
	var reviews sync.WaitGroup
	for i, right := range rights {
		reviews.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			status, err := review(right)
			switch {
			case err != nil:
				right.Failure = diagnosis.Failure{Text: err.Error()}
			case !status.Allowed && !status.Denied && status.EvaluationError != "":
				right.Failure = diagnosis.Failure{Text: status.EvaluationError}
			}
			right.Allowed = err == nil && status.Allowed
			decided[i] = right
		})
	}
	reviews.Wait()
	return decided
}

func attributes(right diagnosis.Right) *authorizationv1.ResourceAttributes {
	resource, subresource, _ := strings.Cut(right.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Verb: right.Verb, Group: right.Group, Resource: resource, Subresource: subresource, Namespace: right.Namespace, Name: right.Name,
	}
}
