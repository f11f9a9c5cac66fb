package rangestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestVerifyCluster_ComparesTheIdentity(t *testing.T) {
	identity := ClusterIdentity{UID: "9cdd41dc-32b1-4a4e-ae22-0a8e2f3c9b11", ResourceVersion: "7"}
	cases := map[string]struct {
		value string
		// fresh gives the identity the revision of the value.
		fresh   bool
		problem string
	}{
		"nothing below the prefix":              {problem: "nothing of this cluster"},
		"protobuf":                              {value: "k8s\x00\n\x05v1\x12$" + identity.UID + "z"},
		"JSON":                                  {value: `{"metadata":{"uid":"` + identity.UID + `"}}`},
		"that of another cluster":               {value: "k8s\x00\n\x05v1\x12$0d5b1c5e-0000-4a4e-ae22-0a8e2f3c9b11z", problem: "of another cluster"},
		"another cluster's at the revision":     {value: "k8s\x00another", fresh: true, problem: "of another cluster"},
		"encrypted, of the revision":            {value: "k8s:enc:aescbc:v1:key1:xyz", fresh: true},
		"encrypted, and changed or another one": {value: "k8s:enc:aescbc:v1:key1:xyz", problem: "of another cluster"},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			f, of := newFixture(t), identity
			if test.value != "" {
				response, err := f.etcd.Put(t.Context(), f.prefix+identityKey, test.value)
				if err != nil {
					t.Fatal(err)
				}
				if test.fresh {
					of.ResourceVersion = fmt.Sprint(response.Header.Revision)
				}
			}
			problem, err := f.VerifyCluster(t.Context(), always(of))
			if err != nil || (problem == "") != (test.problem == "") || !strings.Contains(problem, test.problem) {
				t.Errorf("problem is %q, %v, want %q", problem, err, test.problem)
			}
		})
	}
}

func always(of ClusterIdentity) func(context.Context) (*ClusterIdentity, error) {
	return func(context.Context) (*ClusterIdentity, error) { return &of, nil }
}

// The Service is replaced between the read of the API and that of etcd.
func TestVerifyCluster_ServiceThatChangesInBetweenIsNoOtherCluster(t *testing.T) {
	for name, lives := range map[string]int{"once": 1, "again and again": 100} {
		t.Run(name, func(t *testing.T) {
			f, reads := newFixture(t), 0
			identify := func(ctx context.Context) (*ClusterIdentity, error) {
				of := ClusterIdentity{UID: fmt.Sprintf("life-%d.", min(reads, lives))}
				reads++
				_, err := f.etcd.Put(ctx, f.prefix+identityKey, fmt.Sprintf("life-%d.", min(reads, lives)))
				return &of, err
			}
			problem, err := f.VerifyCluster(t.Context(), identify)
			if problem != "" || errors.Is(err, ErrConflict) != (lives > 1) || lives == 1 && err != nil {
				t.Errorf("problem is %q, %v after %d reads", problem, err, reads)
			}
		})
	}
}

func TestVerifyCluster_AcceptsTheRealCluster(t *testing.T) {
	service, err := testkit.Kube(t).CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of := ClusterIdentity{UID: string(service.UID), ResourceVersion: service.ResourceVersion}
	if problem, err := New(testkit.Etcd(t), "/registry/").VerifyCluster(t.Context(), always(of)); problem != "" || err != nil {
		t.Errorf("problem is %q, %v", problem, err)
	}
	if problem, err := New(testkit.Etcd(t), "/elsewhere").VerifyCluster(t.Context(), always(of)); problem == "" || err != nil {
		t.Errorf("elsewhere the problem is %q, %v", problem, err)
	}
}
