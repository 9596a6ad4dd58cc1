package strict_test

import (
	"fmt"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

func ExampleYAML() {
	root, err := strict.YAML("agent.yaml", []byte("device: press-07\npol: 60s\n"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("device", root.Need("device").Text())
	fmt.Println("poll", root.Get("poll").Duration())
	root.Close()
	fmt.Println(root.Err())
	// Output:
	// device press-07
	// poll 0s
	// agent.yaml:2:1: pol: unknown key, did you mean "poll"?
}

func ExampleJSON() {
	_, err := strict.JSON("state.json", []byte("{\"manifestVersion\": 7,\n \"manifestVersion\": 8}"))
	fmt.Println(err)
	// Output:
	// state.json:2:2: manifestVersion: duplicate key, first at line 1
}
