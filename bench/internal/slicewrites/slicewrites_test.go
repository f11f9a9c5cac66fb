package slicewrites

import "testing"

func TestCount_CountsWhatSucceeded(t *testing.T) {
	const metrics = `# TYPE apiserver_request_total counter
apiserver_request_total{code="201",group="discovery.k8s.io",resource="endpointslices",verb="POST"} 3
apiserver_request_total{code="200",group="discovery.k8s.io",resource="endpointslices",verb="PUT"} 1.2e+01
apiserver_request_total{code="409",group="discovery.k8s.io",resource="endpointslices",verb="PUT"} 100
apiserver_request_total{code="200",group="discovery.k8s.io",resource="endpointslices",verb="LIST"} 100
apiserver_request_total{code="200",group="discovery.k8s.io",resource="endpointslices",verb="DELETECOLLECTION"} 100
apiserver_request_total{code="201",group="",resource="pods",verb="POST"} 100
apiserver_request_total_other{code="201",resource="endpointslices",verb="POST"} 100
apiserver_request_total{code="200",group="discovery.k8s.io",resource="endpointslices",verb="DELETE"} 2
`
	got, err := count(metrics)
	if err != nil || got != 17 {
		t.Errorf("%d writes, %v; want 17", got, err)
	}
	if _, err := count(`apiserver_request_total{code="201",resource="endpointslices",verb="POST"} many` + "\n"); err == nil {
		t.Error("a sample that is no number is counted")
	}
}
