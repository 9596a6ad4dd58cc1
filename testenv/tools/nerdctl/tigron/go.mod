// Stands in for a module of nerdctl's tests that no proxy serves: what nerdctl itself links names one interface of it.
module github.com/containerd/nerdctl/mod/tigron

go 1.26.0
