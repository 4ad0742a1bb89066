// Print what a URL returns, with net/http as it is.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(os.Stdout, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, answer.Status, err)
		os.Exit(1)
	}
}
